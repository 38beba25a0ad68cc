// Byte-level byte-pair encoding: a word's bytes become tokens, then the adjacent pair of the lowest rank is
// merged, the leftmost of equals first, until no pair has a merge. Sennrich et al. 2016; over bytes, Radford
// et al. 2019.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace oscar {

// Vocabularies spell each byte as one printable character: itself where it is printable ("a"), else one from
// U+0100 on (space is "Ġ"). The bytes a token stands for, or nullopt when a character of it stands for none.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);

// Immutable after construction, so encode() may run in many threads.
class Bpe {
 public:
  // tokens: spelled as in the file, the index is the id. merges: "left right", by rank. Both parts and the
  // whole of a merge must be tokens, else std::runtime_error that begins with `where`. whole_words: see
  // pretokenizers.def.
  Bpe(const std::vector<std::string>& tokens, const std::vector<std::string>& merges, bool whole_words,
      const std::string& where);

  struct Scratch;  // working memory, reused from word to word
  // Appends the tokens of one word of raw bytes. A byte that has no token is left out, as llama.cpp does
  // (some vocabularies lack a few control bytes); n log n in the length of the word.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t left, right, rank, whole;
  };
  const Merge* find(int32_t left, int32_t right) const;
  void insert(const Merge& merge);
  void merge_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  static void push(Scratch& scratch, int32_t left, const Merge* merge);

  std::array<int32_t, 256> byte_tokens_;
  std::vector<Merge> table_;  // open addressing, a power of two, at most half full; left -1: free
  // Words that are one token when merged, by their bytes: most words of a text, found without merging.
  std::unordered_map<std::string, int32_t> single_;
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
