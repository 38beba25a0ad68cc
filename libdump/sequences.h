// Documents become sequences of token ids. Calibration and probe sequences never share a token.
#pragma once
#include <functional>
#include <span>

#include "libdump/corpus.h"

namespace oscar {

enum class Packing : uint8_t {
  Documents,  // each document is cut into sequences; its last, shorter piece is kept when it has at least `min_length` tokens
  Packed      // documents are joined and cut into sequences of `length`; what is left over, see below
};
// Where the BOS token goes, in text. One never follows another: text that begins with it, or goes on with it after a cut, gets none.
// Ids of .npy are taken as they are, whatever the policy: no BOS is put before or into them.
enum class BosPolicy : uint8_t {
  None,
  PerDocument,  // before each document
  PerSequence   // before each sequence; it counts towards `length`
};
std::string name(BosPolicy policy);  // "none", "document", "sequence"

struct SequenceOptions {
  int64_t length = 2048;
  int64_t tokens = 0;          // calibration budget, 0: all; the last sequence is cut to it when at least min_length remain
  int64_t min_length = 64;
  Packing packing = Packing::Packed;
  int64_t probes = 0;          // held out: the last N sequences of the calibration corpus (ignored with a probe corpus)
  int32_t vocabulary = 0;      // ids must be below it; 0: not checked
  BosPolicy bos_policy = BosPolicy::None;
  int32_t bos = -1;            // its id; needed by every policy but None
};
struct SequenceSet {
  std::vector<std::vector<int32_t>> calibration, probes;
  // Probe tokens inside a run of 32 that calibration has too: 0 in a corpus without repetitions. When it nears probe_tokens(),
  // the probes measure what was calibrated on, not held-out text.
  int64_t repeated = 0;

  int64_t tokens() const;        // of calibration
  int64_t probe_tokens() const;
};

// What is left over when packed documents are cut (less than `length` tokens, at the end) becomes a last, shorter calibration
// sequence only if it has min_length tokens and the budget cannot be met without it; text that gives no full sequence is Wanting.
// Conversations are ids by now (ChatEncoder). Probes are the last N full sequences (packed), or the last N of any length (documents).
//
//   std::invalid_argument  options that contradict each other; an id outside the vocabulary (with document and position);
//                          a probe that is, token for token, also a calibration sequence
//   Wanting                too few tokens for the budget (by min_length or more), the probes, or one sequence: with counts
using Encode = std::function<std::vector<int32_t>(const std::string&)>;
SequenceSet make_sequences(const std::vector<Document>& corpus, const std::vector<Document>& probe_corpus, const Encode& encode,
                           const SequenceOptions& options);
// sha256 over lengths and ids.
std::string digest(std::span<const std::vector<int32_t>> sequences);
// Tokens of each.
std::vector<int64_t> lengths(std::span<const std::vector<int32_t>> sequences);

}  // namespace oscar
