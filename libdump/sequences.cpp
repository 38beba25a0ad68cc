#include "libdump/sequences.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "formats/error.h"
#include "formats/sha256.h"

namespace oscar {
namespace {

using Sequence = std::vector<int32_t>;

int64_t count(std::span<const Sequence> sequences) {
  return std::accumulate(sequences.begin(), sequences.end(), int64_t{0},
                         [](int64_t sum, const Sequence& s) { return sum + static_cast<int64_t>(s.size()); });
}

void check(const SequenceOptions& o) {
  if (o.length < 2) throw invalid("sequence length {}: expected at least 2", o.length);
  if (o.min_length < 1 || o.min_length > o.length)
    throw invalid("minimum length {}: expected 1 to {}, the sequence length", o.min_length, o.length);
  if (o.tokens < 0 || (o.tokens > 0 && o.tokens < o.min_length))
    throw invalid("{} calibration tokens: expected 0 (all) or at least {}, the shortest sequence", o.tokens,
                  o.min_length);
  if (o.probes < 0) throw invalid("{} probe sequences: expected 0 or more", o.probes);
  if (o.bos_policy != BosPolicy::None && o.bos < 0)
    throw invalid("BOS policy '{}': the tokenizer has no BOS token; expected the policy 'none'",
                  name(o.bos_policy));
}

// Documents joined, and where each begins and whether BOS may be added to it.
struct Stream {
  struct Part {
    size_t end;
    bool text;
  };
  Sequence ids;
  std::vector<Part> parts;
};

void append(Stream& stream, const Document& document, size_t number, const Encode& encode,
            const SequenceOptions& o) {
  const auto* text = std::get_if<std::string>(&document);
  const bool takes_bos = text || document.was_conversation;
  const Sequence ids = text ? encode(*text) : std::get<Sequence>(document);
  const auto outside = std::find_if(
      ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || (o.vocabulary > 0 && id >= o.vocabulary); });
  if (outside != ids.end()) {
    throw invalid("{}: position {}: token id {} is outside the vocabulary of {}",
                  document.source.empty() ? fmt::format("document {}", number) : document.source,
                  outside - ids.begin(), *outside, o.vocabulary);
  }
  if (ids.empty()) return;
  if (takes_bos && o.bos_policy == BosPolicy::PerDocument && ids.front() != o.bos) stream.ids.push_back(o.bos);
  stream.ids.insert(stream.ids.end(), ids.begin(), ids.end());
  stream.parts.push_back({stream.ids.size(), takes_bos});
}

// Every token once, in order: full sequences, then what is left over.
std::vector<Sequence> cut(const Stream& stream, const SequenceOptions& o) {
  std::vector<Sequence> sequences;
  auto part = stream.parts.begin();
  for (size_t at = 0; at < stream.ids.size();) {
    while (part->end <= at) ++part;
    Sequence sequence;
    if (o.bos_policy == BosPolicy::PerSequence && part->text && stream.ids[at] != o.bos)
      sequence.push_back(o.bos);
    const size_t n = std::min(static_cast<size_t>(o.length) - sequence.size(), stream.ids.size() - at);
    sequence.insert(sequence.end(), stream.ids.begin() + static_cast<ptrdiff_t>(at),
                    stream.ids.begin() + static_cast<ptrdiff_t>(at + n));
    sequences.push_back(std::move(sequence));
    at += n;
  }
  return sequences;
}

struct Cut {
  std::vector<Sequence> sequences;
  Sequence left_over;  // of packed documents, when it has min_length tokens
  int64_t tokens = 0;  // of the corpus, BOS included
};

Cut cut_corpus(const std::vector<Document>& corpus, const Encode& encode, const SequenceOptions& o) {
  Cut result;
  Stream joined;
  const auto long_enough = [&](const Sequence& s) { return static_cast<int64_t>(s.size()) >= o.min_length; };
  for (size_t i = 0; i < corpus.size(); ++i) {
    append(joined, corpus[i], i, encode, o);
    if (o.packing == Packing::Packed) continue;
    for (auto& sequence : cut(std::exchange(joined, {}), o)) {
      result.tokens += static_cast<int64_t>(sequence.size());
      if (long_enough(sequence)) result.sequences.push_back(std::move(sequence));
    }
  }
  if (o.packing == Packing::Documents) return result;
  result.sequences = cut(joined, o);
  result.tokens = count(result.sequences);
  if (!result.sequences.empty() && static_cast<int64_t>(result.sequences.back().size()) < o.length) {
    result.left_over = std::move(result.sequences.back());
    result.sequences.pop_back();
    if (!long_enough(result.left_over)) result.left_over.clear();
  }
  return result;
}

// The first sequences up to the budget, the last of them cut to it.
std::vector<Sequence> spend(std::vector<Sequence> sequences, Sequence left_over, const SequenceOptions& o) {
  if (o.tokens == 0) return sequences;
  if (count(sequences) < o.tokens && !left_over.empty()) sequences.push_back(std::move(left_over));
  std::vector<Sequence> taken;
  int64_t left = o.tokens;
  for (auto& sequence : sequences) {
    if (left < o.min_length) break;
    if (static_cast<int64_t>(sequence.size()) > left) sequence.resize(static_cast<size_t>(left));
    left -= static_cast<int64_t>(sequence.size());
    taken.push_back(std::move(sequence));
  }
  return taken;
}

void refuse_shared(const SequenceSet& set) {
  std::set<std::span<const int32_t>,
           decltype([](auto a, auto b) { return std::ranges::lexicographical_compare(a, b); })>
      calibration(set.calibration.begin(), set.calibration.end());
  for (size_t i = 0; i < set.probes.size(); ++i) {
    if (calibration.contains(set.probes[i])) {
      throw invalid(
          "probe sequence {} ({} tokens) is also a calibration sequence: the probes must be held out; give "
          "other probe text",
          i, set.probes[i].size());
    }
  }
}

// Calls visit(begin, end, hash) for each window of 32 tokens (polynomial, rolling; a chance collision in 2^64
// is of no account).
template <typename Visit>
void windows(const Sequence& s, Visit visit) {
  constexpr size_t width = 32;
  constexpr uint64_t base = 0x9e3779b97f4a7c15u;
  uint64_t leaving = 1, hash = 0;
  for (size_t i = 0; i < width; ++i) leaving *= base;
  for (size_t i = 0; i < s.size(); ++i) {
    hash = hash * base + static_cast<uint32_t>(s[i]) + 1;
    if (i >= width) hash -= leaving * (static_cast<uint32_t>(s[i - width]) + uint64_t{1});
    if (i + 1 >= width) visit(i + 1 - width, i + 1, hash);
  }
}

int64_t repeated_tokens(const SequenceSet& set) {
  if (set.probes.empty()) return 0;
  std::vector<uint64_t> seen;
  seen.reserve(static_cast<size_t>(set.tokens()));
  for (const auto& sequence : set.calibration)
    windows(sequence, [&](size_t, size_t, uint64_t hash) { seen.push_back(hash); });
  std::sort(seen.begin(), seen.end());
  int64_t repeated = 0;
  for (const auto& sequence : set.probes) {
    size_t counted = 0;  // tokens before it are in the sum, or in no repeated window
    windows(sequence, [&](size_t begin, size_t end, uint64_t hash) {
      if (!std::binary_search(seen.begin(), seen.end(), hash)) return;
      repeated += static_cast<int64_t>(end - std::max(begin, counted));
      counted = end;
    });
  }
  return repeated;
}

}  // namespace

std::string name(BosPolicy policy) {
  constexpr const char* names[] = {"none", "document", "sequence"};
  return names[static_cast<size_t>(policy)];
}

int64_t SequenceSet::tokens() const {
  return count(calibration);
}
int64_t SequenceSet::probe_tokens() const {
  return count(probes);
}

SequenceSet make_sequences(const std::vector<Document>& corpus, const std::vector<Document>& probe_corpus,
                           const Encode& encode, const SequenceOptions& options) {
  check(options);
  Cut all = cut_corpus(corpus, encode, options);
  const auto made =
      fmt::format("{} documents of {} tokens make {} sequences of {}", corpus.size(), all.tokens, all.sequences.size(),
                  options.packing == Packing::Packed ? fmt::format("{} tokens", options.length)
                                                     : fmt::format("{} to {} tokens", options.min_length, options.length));
  SequenceSet set;
  if (!probe_corpus.empty()) {
    Cut held_out = cut_corpus(probe_corpus, encode, options);
    if (held_out.sequences.empty()) {
      throw wanting(
          "probe text: {} documents of {} tokens make no sequence of {} tokens: give more text or a smaller sequence "
          "length",
          probe_corpus.size(), held_out.tokens, options.packing == Packing::Packed ? options.length : options.min_length);
    }
    set.probes = std::move(held_out.sequences);
  } else if (options.probes > 0) {
    if (static_cast<int64_t>(all.sequences.size()) <= options.probes) {
      throw wanting(
          "calibration text: {}; needed {} for probes and at least one more: give more text or a smaller "
          "sequence length",
          made, options.probes);
    }
    const auto first = all.sequences.end() - options.probes;
    set.probes.assign(std::make_move_iterator(first), std::make_move_iterator(all.sequences.end()));
    all.sequences.erase(first, all.sequences.end());
  }
  set.calibration = spend(std::move(all.sequences), std::move(all.left_over), options);
  if (set.calibration.empty())
    throw wanting("calibration text: {}: give more text or a smaller sequence length", made);
  if (options.tokens - set.tokens() >= options.min_length) {
    throw wanting(
        "calibration text: {}; {} tokens are left for calibration{}, {} were asked for: give more text or "
        "ask for fewer",
        made, set.tokens(), set.probes.empty() || !probe_corpus.empty() ? "" : " beside the probes",
        options.tokens);
  }
  refuse_shared(set);
  set.repeated = repeated_tokens(set);
  return set;
}

std::vector<int64_t> lengths(std::span<const std::vector<int32_t>> sequences) {
  std::vector<int64_t> out;
  for (const auto& ids : sequences) out.push_back(static_cast<int64_t>(ids.size()));
  return out;
}

std::string digest(std::span<const std::vector<int32_t>> sequences) {
  Sha256 sha;
  for (const Sequence& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.size());
    sha.update(std::as_bytes(std::span(&length, 1)));
    sha.update(std::as_bytes(std::span(sequence)));
  }
  return sha.hex();
}

}  // namespace oscar
