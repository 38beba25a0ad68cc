// Documents become sequences of token ids. Calibration and probe sequences never share a token.
#pragma once
#include <functional>
#include <span>

#include "libdump/corpus.h"

namespace oscar {

enum class Packing : uint8_t {
  Documents,  // each document is cut into sequences; its last, shorter piece is kept when it has at least `min_length` tokens
  Packed      // documents are joined (one BOS between them where the policy has one) and cut into full sequences
};
struct SequenceOptions {
  int64_t length = 2048;
  int64_t tokens = 0;          // calibration budget, 0: all; the last sequence is cut to it when at least min_length remain
  int64_t min_length = 64;
  Packing packing = Packing::Packed;
  int64_t probes = 0;          // held out: the last N sequences of the calibration corpus (ignored with a probe corpus)
  int32_t vocabulary = 0;      // ids must be below it
};
struct SequenceSet {
  std::vector<std::vector<int32_t>> calibration, probes;
  int64_t tokens() const;      // of calibration
};

using Encode = std::function<std::vector<int32_t>(const std::string&)>;
// Ids of .npy are taken as they are (no BOS added). Wanting when there are too few tokens: says how many were there and needed.
SequenceSet make_sequences(const std::vector<Document>& corpus, const std::vector<Document>& probe_corpus, const Encode& encode,
                           const SequenceOptions& options);
// sha256 over lengths and ids.
std::string digest(std::span<const std::vector<int32_t>> sequences);

}  // namespace oscar
