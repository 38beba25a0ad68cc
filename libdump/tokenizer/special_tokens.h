// Tokens that are recognised in text as they are written, before it is cut into words: "<|im_start|>".
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

class SpecialTokens {
 public:
  void add(std::string text, int32_t id);  // empty text is ignored
  // Pieces of `text` in order, none empty: (piece, id), id -1 for text between tokens. Where tokens overlap
  // in the text the longest takes it, then the leftmost: as llama.cpp does. (Hugging Face takes the leftmost,
  // then the longest; no vocabulary is known in which that differs.)
  void split(std::string_view text, const std::function<void(std::string_view, int32_t)>& piece) const;

 private:
  std::vector<size_t> present(std::string_view text) const;

  struct Token {
    std::string text;
    int32_t id;
  };
  std::vector<Token> tokens_;  // longest first
  std::array<std::vector<size_t>, 256> by_first_byte_;
};

}  // namespace oscar
