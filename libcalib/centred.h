// Mean and covariance of the rows of one KV head, all tokens alike or weighted by the attention that they
// get.
#pragma once
#include "libcalib/statistics.h"

namespace oscar {

struct Centred {
  Vector mean;        // (D)
  Matrix covariance;  // (D, D), centred second moment
};
// Weighted: keys by u, values by w (docs/math.md). std::invalid_argument where the statistics hold no score
// sums, or no attention reached a history.
Centred centred_rows(const LayerSums& sums, Side side, int head, bool weighted);

}  // namespace oscar
