// Text to token ids, as the model was trained to read it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace oscar {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // UTF-8 text, else std::invalid_argument with the offset; special tokens written in it ("<|im_start|>") are
  // recognised when `parse_special`, those a user defined always. BOS is never added here. Thread-safe.
  virtual std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const = 0;
  // The text of the ids; it equals what was encoded unless a byte of that had no token. An id outside the
  // vocabulary: std::invalid_argument.
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int32_t size() const = 0;
  virtual int32_t bos() const = 0;         // -1: none
  virtual bool adds_bos() const = 0;       // what the file asks for
  virtual std::string digest() const = 0;  // sha256 of vocabulary, merges, special tokens and pre-tokenizer
};

// What a byte-level BPE tokenizer is made of, wherever it comes from.
struct BpeVocabulary {
  enum Type : int64_t {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6
  };  // as in GGUF
  std::vector<std::string>
      tokens;  // the index is the id; Normal ones in the byte alphabet of bpe.h, others as they are
  std::vector<int64_t> types;       // one a token, or empty: all Normal
  std::vector<std::string> merges;  // "left right", by rank
  std::string pretokenizer;         // a name of pretokenizers.def
  int32_t bos = -1;
  std::optional<bool> adds_bos;  // nullopt: as pretokenizers.def says, where there is a bos
};
// `where` begins the messages. An inconsistent vocabulary is std::runtime_error, an unknown pre-tokenizer
// std::invalid_argument.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const BpeVocabulary& vocabulary, const std::string& where);

// tokenizer.ggml.*: model "gpt2" (byte-level BPE) with a pre-tokenizer of pretokenizers.def. Any other is
// refused by name.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufFile& file);

// A tokenizer.json of Hugging Face, model BPE, and of the tokenizer_config.json beside it, if there is one,
// bos_token and add_bos_token (which goes before what the post_processor says). encode() gives the ids that
// the `tokenizers` package gives without special tokens added; docs/file-formats.md says what is read. What
// is not is std::invalid_argument by name, an inconsistent file std::runtime_error.
std::unique_ptr<Tokenizer> tokenizer_from_json(const std::filesystem::path& file);

}  // namespace oscar
