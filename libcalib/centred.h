// Mean and covariance of the rows of one KV head, all tokens alike or weighted by the attention that they
// get.
#pragma once
#include "libcalib/statistics.h"

namespace oscar {

struct Centred {
  Vector mean;        // (D)
  Matrix covariance;  // (D, D), centred second moment
};
// What a row counts by. Attention: keys by u, values by w, the probabilities that reach them. Output: keys by
// x, what they do to the attention output; values by w. (docs/math.md)
enum class Importance : uint8_t { None, Attention, Output };

// std::invalid_argument where the statistics hold no such sums, or no attention reached a history.
Centred centred_rows(const LayerSums& sums, Side side, int head, Importance importance);

}  // namespace oscar
