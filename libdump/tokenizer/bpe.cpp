#include "libdump/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

#include "formats/error.h"
#include "libdump/tokenizer/utf8.h"

namespace oscar {
namespace {

constexpr int32_t none = -1;
constexpr std::string_view mark = "\u2581";  // stands for a space

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

std::optional<uint8_t> byte_of_fallback(std::string_view token) {
  uint8_t byte = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto end = std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr;
  return end == token.data() + 5 ? std::optional(byte) : std::nullopt;
}

BpeMerge split_merge(const std::string& merge, size_t rank, const std::string& where) {
  const size_t space = merge.find(' ', 1);
  if (space == merge.npos)
    throw failure("{}: merge {} is '{}': expected two tokens with a space between", where, rank, merge);
  return {merge.substr(0, space), merge.substr(space + 1)};
}

Bpe::Bpe(const std::vector<std::string>& tokens, const std::vector<BpeMerge>& merges, const BpeRules& rules,
         const std::string& where)
    : rules_(rules) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(tokens.size());
  // A token that occurs twice is known by its last id, a merge that occurs twice by its first rank: so does
  // llama.cpp.
  for (size_t i = 0; i < tokens.size(); ++i)
    if (!tokens[i].empty()) ids[tokens[i]] = static_cast<int32_t>(i);
  const auto id = [&](std::string_view token) {
    const auto found = ids.find(token);
    return found == ids.end() ? none : found->second;
  };
  const bool characters = rules.unit == BpeRules::Characters;
  for (int b = 0; b < 256; ++b)
    byte_tokens_[b] =
        id(characters ? fmt::format("<0x{:02X}>", b) : token_of_bytes(std::string(1, static_cast<char>(b))));
  for (const auto& [token, token_id] : ids) {
    size_t end = 0;
    const uint32_t c = next_code_point(token, end);
    if (!characters || end != token.size()) continue;
    if (c >= character_tokens_.size()) character_tokens_.resize(c + 1, none);
    character_tokens_[c] = token_id;
  }

  table_.assign(std::bit_ceil(2 * merges.size() + 2), Merge{none, none, 0, 0});
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::string whole = left + right;
    for (const std::string_view part : {left, right, whole}) {
      if (id(part) == none)
        throw failure("{}: merge {} is '{} {}', but '{}' is not in the vocabulary", where, rank, left, right,
                      part);
    }
    insert({id(left), id(right), static_cast<int32_t>(rank), id(whole)});
  }
  if (characters && !rules.whole_words) find_breaks(merges);

  Scratch scratch;
  std::vector<int32_t> merged;
  single_.reserve(tokens.size());
  for (const auto& [token, token_id] : ids) {
    auto word = characters ? std::string(token) : bytes_of_token(token).value_or("");
    if (word.empty()) continue;
    merged.clear();
    if (!rules.whole_words) merge_word(word, scratch, merged);
    if (rules.whole_words || (merged.size() == 1 && merged[0] == token_id))
      single_.emplace(std::move(word), token_id);
  }
}

// A merge crosses the place before a mark only if its right part begins with the mark; then its left part
// ends with the character before that place. Fallback bytes have no such character.
void Bpe::find_breaks(const std::vector<BpeMerge>& merges) {
  breaks_ = true;
  for (const auto& [left, right] : merges) {
    if (!right.starts_with(mark)) continue;
    breaks_ = breaks_ && !byte_of_fallback(left);
    size_t last = left.size() - 1;
    while (last > 0 && (left[last] & 0xc0) == 0x80) --last;
    joins_mark_.insert(next_code_point(left, last));
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

const int32_t* Bpe::single(std::string_view word, Scratch& scratch) const {
  scratch.key.assign(word);
  const auto found = single_.find(scratch.key);
  return found == single_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (breaks_) {
    for (size_t at = word.find(mark, 1); at < word.size(); at = word.find(mark, at + mark.size())) {
      size_t before = at;
      do --before;
      while ((word[before] & 0xc0) == 0x80);
      if (joins_mark_.contains(next_code_point(word, before))) continue;
      encode_part(word.substr(0, at), scratch, out);
      word.remove_prefix(at);
      at = 0;
    }
  }
  encode_part(word, scratch, out);
}

void Bpe::encode_part(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (const int32_t* token = single(word, scratch))
    out.push_back(*token);
  else
    merge_word(word, scratch, out);
}

// The tokens of single units, in scratch.symbols.
struct Bpe::Start {
  const Bpe& bpe;
  std::vector<Scratch::Symbol>& symbols;
  bool pending = false;  // an unknown token, which more of what is unknown may join

  void add(int32_t id) { symbols.push_back({id, none, none}); }
  void flush() {
    if (pending) add(bpe.rules_.unknown);
    pending = false;
  }
  void unit(int32_t id, std::string_view spelled) {
    if (id != none) {
      flush();
      return add(id);
    }
    if (bpe.rules_.byte_fallback && bpe.rules_.unit == BpeRules::Characters) {
      const auto token = [&](char byte) { return bpe.byte_tokens_[static_cast<uint8_t>(byte)]; };
      if (std::none_of(spelled.begin(), spelled.end(), [&](char byte) { return token(byte) == none; })) {
        for (const char byte : spelled) add(token(byte));
        return;
      }
    }
    if (bpe.rules_.gaps) return add(none);
    if (bpe.rules_.unknown == none) return;
    if (!bpe.rules_.fuse_unknown) flush();
    pending = true;
  }
};

void Bpe::start(std::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  Start start{*this, scratch.symbols};
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    if (rules_.unit == BpeRules::Bytes) {
      ++at;
      start.unit(byte_tokens_[static_cast<uint8_t>(word[begin])], {});
    } else {
      const uint32_t c = next_code_point(word, at);
      start.unit(c < character_tokens_.size() ? character_tokens_[c] : none, word.substr(begin, at - begin));
    }
  }
  start.flush();
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
  start(word, scratch);
  auto& symbols = scratch.symbols;
  const auto n = static_cast<int32_t>(symbols.size());
  scratch.heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < n ? i + 1 : none;
    if (i + 1 < n) push(scratch, i, find(symbols[i].id, symbols[i + 1].id));
  }

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
