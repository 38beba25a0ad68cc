// Rows that are rotated on their way, sixteen a warp, and coded where the products are, in registers.
#pragma once
#include "kernels/cuda/write_product.cuh"

namespace oscar::cuda {

inline constexpr int kRotateWarps = 8;  // a block, at most

constexpr int rotated_blocks(int dim, size_t row) {
  return dim > 128 ? 1 : row > 64 ? 1 : 2;
}

template <int D, ClipClass kClass, template <int> class RowOf>
__global__ void __launch_bounds__(32 * kRotateWarps, rotated_blocks(D, sizeof(RowOf<D>)))
    write_rotated(const WriteArguments a) {
  extern __shared__ uint4 matrix[];
  const int lane = threadIdx.x & 31, g = lane / 4, warps = blockDim.x / 32;
  const RowStage<D> stage{shared_address(matrix) + 2 * D * D + threadIdx.x / 32 * RowStage<D>::kBytes};
  const int rows = a.head_major ? a.tokens : a.tokens * a.kv_heads, tiles = (rows + 15) / 16;
  int tile = blockIdx.x * warps + threadIdx.x / 32;
  if (tile < tiles) stage.begin(a, tile, rows, blockIdx.y, lane);
  load_matrix<D>(a.rotation + (a.rotation_per_head ? static_cast<int64_t>(blockIdx.y) * D * D : 0), matrix);
  __syncthreads();
  const float* mean = a.mean ? a.mean + blockIdx.y * D : nullptr;  // then rows are head-major
  for (; tile < tiles; tile += gridDim.x * warps) {
    stage.wait();
    RowOf<D> rotated[2];
    rotate(stage, matrix, mean, lane, rotated);
    const int next = tile + gridDim.x * warps;
    if (next < tiles) stage.begin(a, next, rows, blockIdx.y, lane);
#pragma unroll 1
    for (int r = 0; r < 2; ++r) {
      const int index = 16 * tile + 8 * r + g, at = min(index, rows - 1);
      const int token = a.head_major ? at : token_of(a, at),
                head = a.head_major ? blockIdx.y : at - token * a.kv_heads;
      write_row<D, kClass>(rotated[0], a, place_row(a, token, head, index < rows), lane);
      rotated[0] = rotated[1];
    }
  }
}

template <int D, ClipClass kClass, template <int> class RowOf>
cudaError_t launch_rotated(const WriteArguments& a, cudaStream_t stream) {
  return launch_wave(write_rotated<D, kClass, RowOf>, 2 * D * D, RowStage<D>::kBytes, kRotateWarps, a, stream,
                     a);
}

template <ClipClass kClass, template <int> class RowOf>
cudaError_t launch_rotated(int dim, const WriteArguments& a, cudaStream_t stream) {
  switch (dim) {
    case 64:
      return launch_rotated<64, kClass, RowOf>(a, stream);
    case 96:
      return launch_rotated<96, kClass, RowOf>(a, stream);
    case 128:
      return launch_rotated<128, kClass, RowOf>(a, stream);
    case 192:
      return launch_rotated<192, kClass, RowOf>(a, stream);
    default:
      return launch_rotated<256, kClass, RowOf>(a, stream);
  }
}

}  // namespace oscar::cuda
