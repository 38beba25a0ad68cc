// Rows that are rotated on their way, sixteen a warp, and coded where the products are, in registers.
#pragma once
#include "kernels/cuda/write_product.cuh"

namespace oscar::cuda {

inline constexpr int kRotateRows = kRotateThreads / 2;  // a block

template <int D, ClipClass kClass, template <int> class RowOf>
__global__ void __launch_bounds__(kRotateThreads, D <= 128 && sizeof(RowOf<D>) <= 64 ? 2 : 1)
    write_rotated(const WriteArguments a) {
  extern __shared__ uint4 matrix[];
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane & 3;
  load_matrix<D>(a.rotation + (a.rotation_per_head ? static_cast<int64_t>(blockIdx.y) * D * D : 0), matrix);
  __syncthreads();
  const int rows = a.head_major ? a.tokens : a.tokens * a.kv_heads;
  const int tiles = (rows + 15) / 16;
  for (int tile = blockIdx.x * (kRotateThreads / 32) + threadIdx.x / 32; tile < tiles;
       tile += gridDim.x * (kRotateThreads / 32)) {
    PackedRow<D> x[2];
    int token[2], head[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int index = min(16 * tile + 8 * r + g, rows - 1);
      token[r] = a.head_major ? index : index / a.kv_heads;
      head[r] = a.head_major ? blockIdx.y : index - token[r] * a.kv_heads;
      const auto* from = static_cast<const __nv_bfloat16*>(a.rows) +
                         (static_cast<int64_t>(token[r]) * a.kv_heads + head[r]) * D;
      load_bf16(x[r], from, t);
    }
    RowOf<D> rotated[2];
    const float* mean = a.mean ? a.mean + head[0] * D : nullptr;  // head-major rows: both are of one head
    rotate(x, matrix, mean, lane, rotated);
#pragma unroll 1
    for (int r = 0; r < 2; ++r) {
      RowOf<D> row = rotated[0];
      if (r == 1) row = rotated[1];
      const bool valid = 16 * tile + 8 * r + g < rows;
      const RowPlace at = place_row(a, r ? token[1] : token[0], r ? head[1] : head[0], valid);
      write_row<D, kClass>(row, a, at, lane);
    }
  }
}

template <int D, ClipClass kClass, template <int> class RowOf>
cudaError_t launch_rotated(const WriteArguments& a, cudaStream_t stream) {
  const auto kernel = write_rotated<D, kClass, RowOf>;
  const int shared = 2 * D * D;
  if (const auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared))
    return e;
  int device = 0, processors = 0, resident = 0;
  if (const auto e = cudaGetDevice(&device)) return e;
  if (const auto e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return e;
  if (const auto e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kRotateThreads, shared))
    return e;
  const int heads = a.head_major ? a.kv_heads : 1;
  const int64_t rows = a.head_major ? a.tokens : static_cast<int64_t>(a.tokens) * a.kv_heads;
  const int64_t tiles = (rows + kRotateRows - 1) / kRotateRows;
  const int64_t wave = processors * resident / heads;  // one wave, each block with its matrix once
  const dim3 grid(static_cast<unsigned>(tiles < wave ? tiles : wave > 0 ? wave : 1), heads);
  kernel<<<grid, kRotateThreads, shared, stream>>>(a);
  return cudaGetLastError();
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
