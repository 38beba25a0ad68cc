// Rows times a matrix: a warp multiplies 16 rows with the matrix, which its block holds in shared memory in
// the order of the operands, and gets the products in the registers of write_rows.cuh.
//
// Operand orders are free where both sides agree, so lane t loads the 16-byte pieces of write_rows.cuh as its
// part of the sums, and the matrix's columns are ordered so that it gets the same channels of the product
// back:
//   sum, step s = 2 m + h     k = 2 t + e, 8 + 2 t + e      are channels  32 m + 8 t + 4 h + e, ... + 2 + e
//   product, tile j           column 2 t + e                is channel    32 (j / 4) + 8 t + 2 (j % 4) + e
#pragma once
#include "kernels/cuda/write.cuh"

namespace oscar::cuda {

inline constexpr int kRotateThreads = 256;  // a block

// Shared: uint4 [D/16 steps][D/16 pairs of tiles][32 lanes], (b0, b1) of the two tiles.
template <int D>
OSCAR_DEVICE void load_matrix(const uint16_t* matrix, uint4* shared) {
  for (int n = threadIdx.x; n < D * D / 8; n += kRotateThreads) {
    const int lane = n % 32, g = lane / 4, t = lane % 4, pair = n / 32 % (D / 16), s = n / (2 * D);
    const int k = 32 * (s / 2) + 8 * t + 4 * (s % 2);
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 2 * pair + i / 2;
      const int column = 32 * (j / 4) + 8 * (g / 2) + 2 * (j % 4) + g % 2;
      const uint16_t* at = matrix + (k + 2 * (i % 2)) * D + column;
      word[i] = at[0] | unsigned{at[D]} << 16;
    }
    shared[n] = make_uint4(word[0], word[1], word[2], word[3]);
  }
}

// Units [first, first + Count) of the product of rows g and g + 8, less the mean.
template <int Count, int D, class Row>
OSCAR_DEVICE void rotate_units(const PackedRow<D> (&x)[2], const uint4* matrix, const float* mean, int lane,
                               int first, Row (&out)[2]) {
  float sums[4 * Count][4];
#pragma unroll
  for (int j = 0; j < 4 * Count; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
#pragma unroll
  for (int s = 0; s < D / 16; ++s) {
    const int at = 4 * (s / 2) + 2 * (s % 2);
#pragma unroll
    for (int j = 0; j < 4 * Count; j += 2) {
      const uint4 b = matrix[(s * (D / 16) + 2 * first + j / 2) * 32 + lane];
      product_bf16(sums[j], x[0].x[at], x[1].x[at], x[0].x[at + 1], x[1].x[at + 1], b.x, b.y);
      product_bf16(sums[j + 1], x[0].x[at], x[1].x[at], x[0].x[at + 1], x[1].x[at + 1], b.z, b.w);
    }
  }
#pragma unroll
  for (int m = 0; m < Count; ++m) {
    float shift[8] = {};
    if (mean) {
#pragma unroll
      for (int i = 0; i < 8; ++i) shift[i] = mean[32 * (first + m) + 8 * (lane & 3) + i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __fsub_rn(sums[4 * m + i / 2][2 * r + i % 2], shift[i]);
      out[r].set_unit(first + m, v);
    }
  }
}
template <int D, class Row>
OSCAR_DEVICE void rotate(const PackedRow<D> (&x)[2], const uint4* matrix, const float* mean, int lane,
                         Row (&out)[2]) {
  constexpr int kCount = D % 64 == 0 ? 2 : 1;  // at a time: registers
#pragma unroll
  for (int m = 0; m < D / 32; m += kCount) rotate_units<kCount>(x, matrix, mean, lane, m, out);
}

}  // namespace oscar::cuda
