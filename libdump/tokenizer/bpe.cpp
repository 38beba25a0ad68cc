#include "libdump/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "formats/error.h"
#include "libdump/tokenizer/utf8.h"

namespace oscar {
namespace {

constexpr int32_t none = -1;

struct Alphabet {
  std::array<uint32_t, 256> character;
  std::array<int16_t, 512> byte;
  Alphabet() {
    byte.fill(-1);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};
const Alphabet& alphabet() {
  static const Alphabet a;
  return a;
}

size_t hash(int32_t left, int32_t right) {
  uint64_t x =
      (uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right)) * 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(x ^ x >> 32);
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const uint32_t c = next_code_point(token, i);
    if (c >= 512 || alphabet().byte[c] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[c]);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char b : bytes) token += to_utf8(alphabet().character[static_cast<uint8_t>(b)]);
  return token;
}

Bpe::Bpe(const std::vector<std::string>& tokens, const std::vector<std::string>& merges, bool whole_words,
         const std::string& where) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(tokens.size());
  // A token that occurs twice is known by its last id, a merge that occurs twice by its first rank: so does
  // llama.cpp.
  for (size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = static_cast<int32_t>(i);
  const auto id = [&](std::string_view token) {
    const auto found = ids.find(token);
    return found == ids.end() ? none : found->second;
  };
  for (int b = 0; b < 256; ++b) byte_tokens_[b] = id(token_of_bytes(std::string(1, static_cast<char>(b))));

  table_.assign(std::bit_ceil(2 * merges.size() + 2), Merge{none, none, 0, 0});
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos)
      throw failure("{}: merge {} is '{}': expected two tokens with a space between", where, rank, merge);
    const auto left = merge.substr(0, space), right = merge.substr(space + 1);
    const std::string whole = std::string(left) + std::string(right);
    for (const auto part : {left, right, std::string_view(whole)}) {
      if (id(part) == none)
        throw failure("{}: merge {} is '{}', but '{}' is not in the vocabulary", where, rank, merge, part);
    }
    insert({id(left), id(right), static_cast<int32_t>(rank), id(whole)});
  }

  Scratch scratch;
  std::vector<int32_t> merged;
  single_.reserve(tokens.size());
  for (const auto& [token, token_id] : ids) {
    auto bytes = bytes_of_token(token);
    if (!bytes || bytes->empty()) continue;
    merged.clear();
    if (!whole_words) merge_word(*bytes, scratch, merged);
    if (whole_words || (merged.size() == 1 && merged[0] == token_id))
      single_.emplace(std::move(*bytes), token_id);
  }
}

void Bpe::insert(const Merge& merge) {
  const size_t mask = table_.size() - 1;
  size_t i = hash(merge.left, merge.right) & mask;
  for (; table_[i].left != none; i = (i + 1) & mask)
    if (table_[i].left == merge.left && table_[i].right == merge.right) return;
  table_[i] = merge;
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  if (left == none || right == none) return nullptr;
  const size_t mask = table_.size() - 1;
  for (size_t i = hash(left, right) & mask; table_[i].left != none; i = (i + 1) & mask)
    if (table_[i].left == left && table_[i].right == right) return &table_[i];
  return nullptr;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  scratch.key.assign(word);
  const auto found = single_.find(scratch.key);
  if (found != single_.end()) {
    out.push_back(found->second);
  } else {
    merge_word(word, scratch, out);
  }
}

namespace {
// std heaps keep the largest first: `a` is after `b` when its rank is higher, or equal and further right.
constexpr auto after = [](const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
};
}  // namespace

void Bpe::push(Scratch& scratch, int32_t left, const Merge* merge) {
  if (!merge) return;
  scratch.heap.push_back({merge->rank, left, merge->left, merge->right, merge->whole});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), after);
}

void Bpe::merge_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw invalid("a word of {} bytes: expected less than 2 GiB without a break", word.size());
  constexpr int32_t gone = -2;
  const auto n = static_cast<int32_t>(word.size());
  auto& symbols = scratch.symbols;
  symbols.resize(word.size());
  scratch.heap.clear();
  for (int32_t i = 0; i < n; ++i)
    symbols[i] = {byte_tokens_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < n ? i + 1 : none};
  for (int32_t i = 0; i + 1 < n; ++i) push(scratch, i, find(symbols[i].id, symbols[i + 1].id));

  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), after);
    const auto best = scratch.heap.back();
    scratch.heap.pop_back();
    auto& left = symbols[best.position];
    // Candidates are not withdrawn when a neighbour is merged away; they are recognised here.
    if (left.id != best.left || left.next == none || symbols[left.next].id != best.right) continue;
    auto& right = symbols[left.next];
    left.id = best.whole;
    left.next = right.next;
    right.id = gone;
    if (left.next != none) {
      symbols[left.next].previous = best.position;
      push(scratch, best.position, find(left.id, symbols[left.next].id));
    }
    if (left.previous != none) push(scratch, left.previous, find(symbols[left.previous].id, left.id));
  }
  for (int32_t i = n ? 0 : none; i != none; i = symbols[i].next)
    if (symbols[i].id != none) out.push_back(symbols[i].id);
}

}  // namespace oscar
