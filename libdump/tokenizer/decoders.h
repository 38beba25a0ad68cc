// The decoder of tokenizer.json: tokens as they are spelled become text.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace oscar {

struct Spelled {
  std::string text;
  bool added = false;  // written as it is: neither in the byte alphabet nor a byte like <0x0A>
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<Spelled>& tokens) const = 0;  // thread-safe
};
// Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace. Any other kind is
// std::invalid_argument. Bytes that are not UTF-8 stay as they are.
std::unique_ptr<const Decoder> read_decoder(const nlohmann::json& part);

}  // namespace oscar
