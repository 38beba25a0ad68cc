// An invertible map of a cache row. What is coded is (x - mean) forward, what is read is code + mean forward,
// so that in the cache's basis q.k and p.v keep their values, mean and all.
#pragma once
#include "libcalib/types.h"

namespace oscar {

struct Transform {
  Matrix forward;  // (D, D); empty: identity
  Matrix inverse;  // (D, D); empty: the transpose (orthogonal)
  Vector mean;     // (D), in the model's basis; empty: zero

  // Rows are float32 (n, D), `stride` floats apart on the way in, contiguous on the way out. Products in
  // float32.
  void rows(const float* in, int64_t stride, int64_t n, int dim, float* out) const;     // x forward
  void queries(const float* in, int64_t stride, int64_t n, int dim, float* out) const;  // q inverse^T
  void outputs(float* rows, int64_t n, int dim) const;                                  // y inverse, in place
  Vector offset(int dim) const;  // mean forward: what is taken off before coding and put back after decoding
};

}  // namespace oscar
