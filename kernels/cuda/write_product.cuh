// Rows times a matrix: a warp multiplies 16 rows with the matrix, which its block holds in shared memory in
// the order of the operands, and gets the products in the registers of write_rows.cuh. The rows wait in shared
// memory, too, so that those of the next tile come while these are coded.
//
// The matrix's columns are ordered so that a lane gets the channels that write_rows.cuh wants:
//   product, tile j           column 2 t + e                is channel    32 (j / 4) + 8 t + 2 (j % 4) + e
#pragma once
#include <type_traits>

#include "kernels/cuda/write.cuh"

namespace oscar::cuda {

// Shared: uint4 [D/16 steps][D/16 pairs of tiles][32 lanes], (b0, b1) of the two tiles.
template <int D>
OSCAR_DEVICE void load_matrix(const uint16_t* matrix, uint4* shared) {
  for (int n = threadIdx.x; n < D * D / 8; n += blockDim.x) {
    const int lane = n % 32, g = lane / 4, t = lane % 4, pair = n / 32 % (D / 16), s = n / (2 * D);
    const int k = 16 * s + 2 * t;
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 2 * pair + i / 2;
      const int column = 32 * (j / 4) + 8 * (g / 2) + 2 * (j % 4) + g % 2;
      const uint16_t* at = matrix + (k + 8 * (i % 2)) * D + column;
      word[i] = at[0] | unsigned{at[D]} << 16;
    }
    shared[n] = make_uint4(word[0], word[1], word[2], word[3]);
  }
}

// Sixteen rows of bfloat16 of a warp, in shared memory: piece p, of 16 bytes, of row r at p ^ r % 8.
template <int D>
struct RowStage {
  static constexpr int kPieces = (D / 8 + 7) / 8 * 8, kBytes = 16 * 16 * kPieces;
  uint32_t start;

  OSCAR_DEVICE uint32_t piece(int row, int p) const { return start + 16 * (row * kPieces + (p ^ (row & 7))); }
  // Begins to copy rows 16 tile .. + 15 of `head`, or of all heads; row_count - 1 for those beyond it.
  OSCAR_DEVICE void begin(const WriteArguments& a, int tile, int row_count, int head, int lane) const {
    const int stride = a.head_major ? a.kv_heads * D : D;
    const auto* from = static_cast<const __nv_bfloat16*>(a.rows) + (a.head_major ? head * D : 0);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      int row = (32 * i + lane) / (D / 8), p = (32 * i + lane) % (D / 8);
      if constexpr (256 % D == 0) {
        row = 256 / D * i + lane / (D / 8);
        p = lane % (D / 8);
      }
      const int index = min(16 * tile + row, row_count - 1);
      copy16(piece(row, p), from + 8 * p + static_cast<int64_t>(index) * stride);
    }
    copy_commit();
  }
  OSCAR_DEVICE void wait() const {
    copy_wait<0>();
    __syncwarp();
  }
  // Rows g and g + 8, k = 16 s + 2 t, 2 t + 1, then at k + 8.
  OSCAR_DEVICE void operands(int s, int lane, unsigned (&a)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(piece(lane & 15, 2 * s + (lane >> 4)))
                 : "memory");
  }
};

// Units [first, first + Count) of the product of rows g and g + 8, less the mean.
template <int Count, int D, class Row>
OSCAR_DEVICE void rotate_units(const RowStage<D>& stage, const uint4* matrix, const float* mean, int lane,
                               int first, Row (&out)[2]) {
  float sums[4 * Count][4];
#pragma unroll
  for (int j = 0; j < 4 * Count; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
#pragma unroll
  for (int s = 0; s < D / 16; ++s) {
    unsigned x[4];
    stage.operands(s, lane, x);
#pragma unroll
    for (int j = 0; j < 4 * Count; j += 2) {
      const uint4 b = matrix[(s * (D / 16) + 2 * first + j / 2) * 32 + lane];
      product_bf16(sums[j], x[0], x[1], x[2], x[3], b.x, b.y);
      product_bf16(sums[j + 1], x[0], x[1], x[2], x[3], b.z, b.w);
    }
  }
#pragma unroll
  for (int m = 0; m < Count; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = sums[4 * m + i / 2][2 * r + i % 2];
      if (mean) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = __fsub_rn(v[i], mean[32 * (first + m) + 8 * (lane & 3) + i]);
      }
      out[r].set_unit(first + m, v);
    }
  }
}
// Afterwards the stage is free.
template <int D, class Row>
OSCAR_DEVICE void rotate(const RowStage<D>& stage, const uint4* matrix, const float* mean, int lane,
                         Row (&out)[2]) {
  constexpr int kCount = D % 64 == 0 ? 2 : 1;  // at a time: registers
#pragma unroll
  for (int m = 0; m < D / 32; m += kCount) rotate_units<kCount>(stage, matrix, mean, lane, m, out);
  __syncwarp();
}

// How many warps of a block find room for `each` bytes besides what all share.
inline cudaError_t warps_that_fit(int common, int each, int most, int* warps) {
  int device = 0, bytes = 0;
  if (const auto e = cudaGetDevice(&device)) return e;
  if (const auto e = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
    return e;
  *warps = (bytes - common) / each < most ? (bytes - common) / each : most;
  return *warps > 0 ? cudaSuccess : cudaErrorInvalidConfiguration;
}

// A kernel whose warps walk over tiles of 16 rows: one wave of blocks, each with what its warps share once.
// Of shared memory a block has `common` bytes and `each` for every warp, of which there are `most` at most.
template <class... Arguments>
cudaError_t launch_wave(void (*kernel)(Arguments...), int common, int each, int most, const WriteArguments& a,
                        cudaStream_t stream, const std::type_identity_t<Arguments>&... arguments) {
  int warps = 0, device = 0, processors = 0, resident = 0;
  if (const auto e = warps_that_fit(common, each, most, &warps)) return e;
  const int shared = common + warps * each;
  if (const auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared))
    return e;
  if (const auto e = cudaGetDevice(&device)) return e;
  if (const auto e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return e;
  if (const auto e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, 32 * warps, shared))
    return e;
  const int heads = a.head_major ? a.kv_heads : 1;
  const int64_t rows = a.head_major ? a.tokens : static_cast<int64_t>(a.tokens) * a.kv_heads;
  const int64_t blocks = (rows + 16 * warps - 1) / (16 * warps), wave = processors * resident / heads;
  const dim3 grid(static_cast<unsigned>(blocks < wave ? blocks : wave > 0 ? wave : 1), heads);
  kernel<<<grid, 32 * warps, shared, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace oscar::cuda
