#include "libdump/tokenizer/added_tokens.h"

#include "libdump/tokenizer/utf8.h"

namespace oscar {
namespace {

constexpr size_t first_node(char byte) {
  return 1 + static_cast<unsigned char>(byte);
}

size_t character_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xc0) == 0x80);
  return at;
}

bool word_at(std::string_view text, size_t at) {
  return at < text.size() && is_word(next_code_point(text, at));
}
bool word_before(std::string_view text, size_t at) {
  return at > 0 && word_at(text, character_before(text, at));
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  if (token.text.empty()) return;
  size_t node = first_node(token.text[0]);
  for (const char byte : std::string_view(token.text).substr(1)) {
    int32_t child = trie_[node].child;
    while (child && trie_[static_cast<size_t>(child)].byte != byte)
      child = trie_[static_cast<size_t>(child)].sibling;
    if (!child) {
      child = static_cast<int32_t>(trie_.size());
      trie_.push_back({0, trie_[node].child, -1, byte});
      trie_[node].child = child;
    }
    node = static_cast<size_t>(child);
  }
  if (trie_[node].token >= 0) return;
  trie_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::longest(std::string_view text, size_t at) const {
  const Node* node = &trie_[first_node(text[at])];
  int32_t found = -1;
  for (;;) {
    if (node->token >= 0) found = node->token;
    if (++at == text.size()) break;
    int32_t child = node->child;
    while (child && trie_[static_cast<size_t>(child)].byte != text[at])
      child = trie_[static_cast<size_t>(child)].sibling;
    if (!child) break;
    node = &trie_[static_cast<size_t>(child)];
  }
  return found < 0 ? nullptr : &tokens_[static_cast<size_t>(found)];
}

void AddedTokens::split(std::string_view text, bool parse_special, const Piece& piece) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Node& start = trie_[first_node(text[at])];
    const AddedToken* token = start.child || start.token >= 0 ? longest(text, at) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->text.size();
    at = end;  // what is found and not taken hides what begins within it, as in the original
    if (token->special && !parse_special) continue;
    if (token->single_word && (word_before(text, begin) || word_at(text, end))) continue;
    if (token->lstrip) {
      while (begin > done) {
        size_t before = character_before(text, begin), next = before;
        if (!is_white_space(next_code_point(text, next))) break;
        begin = before;
      }
    }
    if (token->rstrip) {
      for (size_t next = end; next < text.size() && is_white_space(next_code_point(text, next));) end = next;
    }
    if (done < begin) piece(text.substr(done, begin - done), -1);
    piece(text.substr(begin, end - begin), token->id);
    done = end;
  }
  if (done < text.size()) piece(text.substr(done), -1);
}

}  // namespace oscar
