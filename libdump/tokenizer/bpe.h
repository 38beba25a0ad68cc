// Byte-pair encoding: a word becomes tokens of one unit each, then the adjacent pair of the lowest rank is
// merged, the leftmost of equals first, until no pair has a merge. Sennrich et al. 2016; over bytes, Radford
// et al. 2019; over characters, with bytes for those that have no token, Kudo and Richardson 2018.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace oscar {

// Vocabularies spell each byte as one printable character: itself where it is printable ("a"), else one from
// U+0100 on (space is "Ġ"). The bytes a token stands for, or nullopt when a character of it stands for none.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);
// Vocabularies of characters spell the bytes of those they lack as <0x0A>.
std::optional<uint8_t> byte_of_fallback(std::string_view token);

using BpeMerge = std::pair<std::string, std::string>;  // left, right
// From "left right"; without a space between two tokens it is std::runtime_error that begins with `where`.
BpeMerge split_merge(const std::string& merge, size_t rank, const std::string& where);

struct BpeRules {
  enum Unit { Bytes, Characters } unit = Bytes;
  bool whole_words = false;    // a word that is a token is that token, whatever the merges would make of it
  bool byte_fallback = false;  // a character without a token becomes the tokens <0x..> of its bytes
  bool fuse_unknown = false;   // one unknown token for a run of what is unknown
  int32_t unknown = -1;        // the token of what has none; -1: it is left out …
  bool gaps = false;           // … but nothing is merged across it, as in llama.cpp
};

// Immutable after construction, so encode() may run in many threads.
class Bpe {
 public:
  // tokens: spelled as in the file, the index is the id, "" is no token. merges: by rank. Both parts and the
  // whole of a merge must be tokens, else std::runtime_error that begins with `where`.
  Bpe(const std::vector<std::string>& tokens, const std::vector<BpeMerge>& merges, const BpeRules& rules,
      const std::string& where);

  struct Scratch;  // working memory, reused from word to word
  // Appends the tokens of one word, which is valid UTF-8 where units are characters; n log n in its length.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t left, right, rank, whole;
  };
  struct Start;
  const Merge* find(int32_t left, int32_t right) const;
  void insert(const Merge& merge);
  void find_breaks(const std::vector<BpeMerge>& merges);
  const int32_t* single(std::string_view word, Scratch& scratch) const;
  void encode_part(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void start(std::string_view word, Scratch& scratch) const;
  static void push(Scratch& scratch, int32_t left, const Merge* merge);

  BpeRules rules_;
  std::array<int32_t, 256> byte_tokens_;   // of the byte alphabet; of <0x..> where units are characters
  std::vector<int32_t> character_tokens_;  // by code point, as far as there are any
  std::vector<Merge> table_;  // open addressing, a power of two, at most half full; left -1: free
  // Words that are one token when merged: most words of a text, found without merging.
  std::unordered_map<std::string, int32_t> single_;
  bool breaks_ = false;  // text may be cut before "▁", which then is merged faster and to the same tokens …
  std::unordered_set<uint32_t> joins_mark_;  // … except after these characters
};

struct Bpe::Scratch {
  struct Symbol {
    int32_t id, previous, next;
  };
  struct Candidate {
    int32_t rank, position, left, right, whole;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::string key;
};

}  // namespace oscar
