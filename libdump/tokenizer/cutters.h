// The pre_tokenizer of tokenizer.json: cuts text into the pieces that merges do not cross. (pretokenizer.h
// has those that GGUF files know by name.)
#pragma once
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

struct Pieces {
  std::vector<std::string_view> list;  // none empty
  bool at_start = true;                // the first of them begins the whole text
  std::deque<std::string> owned;       // what is not a part of the text, where a cutter has changed it
};

class Cutter {
 public:
  virtual ~Cutter() = default;
  virtual void cut(Pieces& pieces) const = 0;        // thread-safe
  virtual bool byte_level() const { return false; }  // the pieces are bytes, to be spelled as in bpe.h
};
// Sequence, Split, ByteLevel, Digits, Metaspace. Any other kind, and a ByteLevel before another, is
// std::invalid_argument.
std::unique_ptr<const Cutter> read_cutter(const nlohmann::json& part);

}  // namespace oscar
