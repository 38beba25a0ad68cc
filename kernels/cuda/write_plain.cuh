// Rows as they come: four lanes of a warp load one, eight rows a warp.
#pragma once
#include "kernels/cuda/write.cuh"

namespace oscar::cuda {

inline constexpr int kWriteThreads = 256, kWriteRows = kWriteThreads / 4;  // a block

// Blocks of a multiprocessor that leave enough registers for a row of so many bytes a lane.
constexpr int blocks_of(size_t row, ClipClass kind) {
  return row > 128 ? 1 : row > 64 ? 2 : kind == ClipClass::few ? 4 : 3;
}

template <int D, ClipClass kClass, template <int> class RowOf>
__global__ void __launch_bounds__(kWriteThreads, blocks_of(sizeof(RowOf<D>), kClass))
    write_rows(const WriteArguments a) {
  const int lane = threadIdx.x & 31, t = lane & 3;
  const unsigned index = blockIdx.x * kWriteRows + threadIdx.x / 4;
  unsigned token = index;
  int head = blockIdx.y;
  if (!a.head_major) {
    token = token_of(a, index);
    head = static_cast<int>(index - token * a.kv_heads);
  }
  const bool valid = token < static_cast<unsigned>(a.tokens);
  const RowPlace at = place_row(a, static_cast<int>(token), head, valid);
  const int64_t from = valid ? static_cast<int64_t>(token * a.kv_heads + head) * D : 0;
  RowOf<D> row;
  load_row<D>(row, a, from, head, t);
  write_row<D, kClass>(row, a, at, lane);
}

template <ClipClass kClass, template <int> class RowOf>
cudaError_t launch_rows(int dim, const WriteArguments& a, cudaStream_t stream) {
  const int64_t rows = a.head_major ? a.tokens : static_cast<int64_t>(a.tokens) * a.kv_heads;
  const dim3 grid(static_cast<unsigned>((rows + kWriteRows - 1) / kWriteRows), a.head_major ? a.kv_heads : 1);
  const auto kernel = dim == 64    ? write_rows<64, kClass, RowOf>
                      : dim == 96  ? write_rows<96, kClass, RowOf>
                      : dim == 128 ? write_rows<128, kClass, RowOf>
                      : dim == 192 ? write_rows<192, kClass, RowOf>
                                   : write_rows<256, kClass, RowOf>;
  kernel<<<grid, kWriteThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace oscar::cuda
