// Transforms tried on rows in float32, as caches hold them: what a fit does before it writes one and verify before it
// measures with one.
#pragma once
#include <span>
#include <string>

#include "libcalib/transforms/transform.h"

namespace oscar {

// Share of an error that is allowed: far above the rounding of float32 products (1e-6), far below what any wrong matrix
// gives.
inline constexpr double kTrialLimit = 1e-3;

// All rows are float32 (n, D), contiguous; logits are those of every query with every key. std::runtime_error that begins
// with `place` where (q inverse^T)(k forward)^T is not q k^T, to `limit` of |q| |k|, or where it is to that and
// float32 has moved the logits, `scale` times, by more than `limit` of them and of 1, which the softmax would see.
void check_logits(const Transform& k, std::span<const float> queries, std::span<const float> keys, int dim,
                  double scale, double limit, const std::string& place);
// The same where v forward inverse is not v, to `limit` of |v|.
void check_values(const Transform& v, std::span<const float> values, int dim, double limit,
                  const std::string& place);

}  // namespace oscar
