// What tokenizer.json does to text before it is cut.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace oscar {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;  // thread-safe
};
// Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend. Any other kind is std::invalid_argument.
std::unique_ptr<const Normalizer> read_normalizer(const nlohmann::json& part);

}  // namespace oscar
