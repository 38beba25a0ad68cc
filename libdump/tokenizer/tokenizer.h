// Text to token ids, as the model was trained to read it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace oscar {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // UTF-8 text; special tokens written in it are recognised ("<|im_start|>") when `parse_special`. BOS is never added here.
  virtual std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int32_t size() const = 0;
  virtual int32_t bos() const = 0;          // -1: none
  virtual bool adds_bos() const = 0;        // what the file asks for
  virtual std::string digest() const = 0;   // sha256 of vocabulary, merges, special tokens and pre-tokenizer
};

// tokenizer.ggml.*: model "gpt2" (byte-level BPE) with a pre-tokenizer of pretokenizers.def. Any other is refused by name.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& file);

}  // namespace oscar
