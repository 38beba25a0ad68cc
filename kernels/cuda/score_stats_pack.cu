// Rows of q, k and v on their way into tiles.
#include "kernels/cuda/score_stats_tile.cuh"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 256;

// Keys or values: tile blockIdx.x of KV head blockIdx.y.
__global__ void __launch_bounds__(kThreads)
    pack_keys(const void* from, int64_t stride, int dim, bool f32, int64_t tokens, int blocks, uint8_t* to) {
  const int lane = threadIdx.x & 31;
  to += (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * blocks * kTileBlock;
  for (int unit = threadIdx.x / 32; unit < 16 * blocks; unit += kThreads / 32) {
    const int row = 4 * (unit & 15) + lane / 8, channel = unit / 16 * 64 + 8 * (lane & 7);
    const int64_t s = static_cast<int64_t>(blockIdx.x) * kTileRows + row;
    *reinterpret_cast<uint4*>(to + unit / 16 * kTileBlock + tile_piece(row, lane & 7)) =
        load8(from, f32, s * stride + static_cast<int64_t>(blockIdx.y) * dim + channel,
              s < tokens && channel < dim);
  }
}

// Queries: tile blockIdx.x of query head blockIdx.y.
__global__ void __launch_bounds__(kThreads) pack_queries(const __grid_constant__ StatsArguments a) {
  const int lane = threadIdx.x & 31, head = blockIdx.y, n0 = blockIdx.x * kTileRows;
  uint8_t* const to = a.packed_queries + (static_cast<int64_t>(head) * a.tiles + blockIdx.x) * a.tile_bytes;
  for (int unit = threadIdx.x / 32; unit < 16 * a.q_tiles; unit += kThreads / 32) {
    const int row = 4 * (unit & 15) + lane / 8, n = n0 + row, channel = unit / 16 * 64 + 8 * (lane & 7);
    const bool present = n < a.queries && channel < a.in.dim;
    const int64_t at =
        present ? query_of(a, n) * a.in.q_stride + static_cast<int64_t>(head) * a.in.dim + channel : 0;
    *reinterpret_cast<uint4*>(to + unit / 16 * kTileBlock + tile_piece(row, lane & 7)) =
        load8(a.in.q, a.in.type == FloatType::f32, at, present);
  }
  const int r = threadIdx.x;
  if (r >= kTileRows) return;
  auto& rows = *reinterpret_cast<TileRows*>(to + (a.q_tiles + 2 * a.v_tiles) * kTileBlock);
  const int t = n0 + r < a.queries ? query_of(a, n0 + r) : -1;
  rows.time[r] = t;
  rows.lse[r] = t >= 0 ? kLog2e * a.in.lse[head * a.in.lse_stride + t] : 0.f;
  if (!a.in.v) rows.output_norm[r] = rows.unit[r] = 0;
}

}  // namespace

cudaError_t launch_stats_pack(const StatsArguments& a, cudaStream_t stream) {
  const bool f32 = a.in.type == FloatType::f32;
  const dim3 key_tiles(a.blocks * a.block_keys / kTileRows, a.in.kv_heads);
  pack_queries<<<dim3(a.tiles, a.in.kv_heads * a.in.group), kThreads, 0, stream>>>(a);
  pack_keys<<<key_tiles, kThreads, 0, stream>>>(a.in.k, a.in.k_stride, a.in.dim, f32, a.in.tokens, a.q_tiles,
                                                a.packed_keys);
  if (a.in.v)
    pack_keys<<<key_tiles, kThreads, 0, stream>>>(a.in.v, a.in.v_stride, a.in.dim_v, f32, a.in.tokens,
                                                  a.v_tiles, a.packed_values);
  return cudaGetLastError();
}

}  // namespace oscar::cuda
