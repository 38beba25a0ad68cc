// An invertible map of a cache row: y = (x - mean) forward, x = y inverse + mean.
// Keys: the query side is q inverse^T, so that logits are (q inverse^T).(y) up to a constant per query.
#pragma once
#include "libcalib/types.h"

namespace oscar {

struct Transform {
  Matrix forward;  // (D, D); empty: identity
  Matrix inverse;  // (D, D); empty: the transpose (orthogonal)
  Vector mean;     // (D); empty: zero

  // Rows are float32 (n, D), `stride` floats apart on the way in, contiguous on the way out. Products in
  // float32.
  void rows(const float* in, int64_t stride, int64_t n, int dim, float* out) const;     // (x - mean) forward
  void queries(const float* in, int64_t stride, int64_t n, int dim, float* out) const;  // q inverse^T
  void outputs(float* rows, int64_t n, int dim) const;  // y inverse + mean, in place
};

}  // namespace oscar
