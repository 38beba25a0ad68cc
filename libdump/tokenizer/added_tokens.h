// The added_tokens of tokenizer.json: recognised in text as they are written, the leftmost first, of those
// the longest. (special_tokens.h is the rule for GGUF files, as llama.cpp has it.)
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

struct AddedToken {
  std::string text;
  int32_t id;
  bool special;         // recognised only when special tokens are
  bool single_word;     // not within a word
  bool lstrip, rstrip;  // takes the white space before, after it
};

class AddedTokens {
 public:
  void add(AddedToken token);  // a text that is empty or known already is ignored
  bool empty() const { return tokens_.empty(); }
  // Pieces of `text` in order, none empty: (piece, id), id -1 for text between tokens. Thread-safe.
  using Piece = std::function<void(std::string_view, int32_t)>;
  void split(std::string_view text, bool parse_special, const Piece& piece) const;

 private:
  const AddedToken* longest(std::string_view text, size_t at) const;

  struct Node {
    int32_t child = 0, sibling = 0, token = -1;  // 0: none, as the root is nobody's child
    char byte = 0;
  };
  std::vector<AddedToken> tokens_;
  std::vector<Node> trie_ = std::vector<Node>(257);  // the root, then one for each first byte
};

}  // namespace oscar
