// Row operations of a decoder's forward pass on a GPU, each one pass over memory. Arrays are in device memory
// and 16-byte aligned; arithmetic is float32, and what leaves as bfloat16 was rounded once. Asynchronous on
// `stream`, capturable.
#pragma once
#include <cstdint>

#include "kernels/status.h"

namespace oscar::cuda {

// out (rows, columns) bfloat16 = x / sqrt(mean of x^2 + eps) * weight.
// x (rows, columns) float32; weight (columns) float32; columns a multiple of 4.
// inverse_power (rows) float32 = 1 / max(sum of x^2, 1e-30); nullptr: not wanted.
Status rms_norm(const float* x, const float* weight, double eps, int64_t rows, int columns, void* out,
                float* inverse_power, void* stream);

// hidden (rows, columns) float32 += scale * update (rows, columns) bfloat16; then rms_norm() of the sum, unless
// out == nullptr. inverse_power is the sum's and may be asked for without out.
Status add_and_norm(float* hidden, const void* update, float scale, const float* weight, double eps,
                    int64_t rows, int columns, void* out, float* inverse_power, void* stream);

// Heads side by side from `column` of `in` on: each is normalised over its dim elements if `norm` is given, then
// its first rotary_dim elements are turned to their positions if cos and sin are.
struct RotaryRows {
  const void* in = nullptr;  // bfloat16: in[t * in_stride + column + h * dim + i]
  int64_t in_stride = 0, column = 0;
  int heads = 0,
      dim = 0;  // dim up to 512. 16-byte loads when 16 divides dim and rotary_dim, and 8 the places
  int64_t rows = 0;
  const float* norm = nullptr;  // (dim); nullptr: no normalisation
  double eps = 0;
  const float *cos = nullptr, *sin = nullptr;  // (rows, rotary_dim / 2) each; nullptr: no rotation
  int rotary_dim = 0;                          // even
  bool neighbours = false;                     // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  void* out = nullptr;                         // bfloat16 (rows, heads, dim)
};
// `count` jobs, 1 to 3 (q, k, v), over the same number of rows in one launch.
Status rotary(const RotaryRows* jobs, int count, void* stream);

// out (rows, width) bfloat16 = silu(gate) * up of in (rows, 2 * width) bfloat16, [gate | up]; width a multiple
// of 8.
Status swiglu(const void* in, int64_t rows, int64_t width, void* out, void* stream);

}  // namespace oscar::cuda
