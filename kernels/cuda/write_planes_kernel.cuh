// Rows as they come or rotated, sixteen a warp: norms, levels, bits.
#pragma once
#include "kernels/cuda/write_planes_levels.cuh"
#include "kernels/cuda/write_planes_store.cuh"
#include "kernels/cuda/write_product.cuh"

namespace oscar::cuda {

inline constexpr int kPlaneWarps = 8;  // a block, at most

// Blocks on a multiprocessor: two rows are in registers, and a matrix in shared memory.
constexpr int plane_blocks(int dim, bool rotated, size_t row) {
  return rotated ? (dim > 128 || row > 64 ? 1 : 2) : row > 128 ? 1 : row > 64 ? 2 : 3;
}

template <int D, bool kRotated>
struct PlaneShared {  // bytes: the matrix, the levels, then of each warp the rows to be rotated and the codes
  static constexpr int kMatrix = kRotated ? 2 * D * D : 0, kCommon = kMatrix + LevelTable<D>::kBytes,
                       kRows = kRotated ? RowStage<D>::kBytes : 0, kEach = kRows + CodeStage<D>::kBytes;
};

template <int D, bool kRotated, template <int> class RowOf>
__global__ void __launch_bounds__(32 * kPlaneWarps, plane_blocks(D, kRotated, sizeof(RowOf<D>)))
    write_planes(const __grid_constant__ WriteArguments a, const __grid_constant__ PlaneArguments p) {
  extern __shared__ uint4 shared[];
  using Shared = PlaneShared<D, kRotated>;
  const int lane = threadIdx.x & 31, g = lane / 4, t = lane & 3, head = blockIdx.y, warps = blockDim.x / 32;
  auto* table = reinterpret_cast<float4*>(shared + Shared::kMatrix / 16);
  const LevelTable<D> levels{table};
  uint8_t* own = reinterpret_cast<uint8_t*>(shared) + Shared::kCommon + threadIdx.x / 32 * Shared::kEach;
  const RowStage<D> stage{shared_address(own)};
  const CodeStage<D> codes{own + Shared::kRows};
  const int tiles = (a.tokens + 15) / 16;
  int tile = blockIdx.x * warps + threadIdx.x / 32;
  if constexpr (kRotated) {
    if (tile < tiles) stage.begin(a, tile, a.tokens, head, lane);
    load_matrix<D>(a.rotation + (a.rotation_per_head ? static_cast<int64_t>(head) * D * D : 0), shared);
  }
  levels.fill(table, p.levels, head);
  __syncthreads();
  const float reach = levels.reach();
  const float* steps = p.levels.steps + head * D + 8 * t;
  const uint8_t* bits = p.levels.bits + head * D + 8 * t;
  for (; tile < tiles; tile += gridDim.x * warps) {
    const int index = 16 * tile + lane / 2;
    const RowPlace at = place_row(a, min(index, a.tokens - 1), head, index < a.tokens);
    RowOf<D> row[2];  // g and g + 8
    if constexpr (kRotated) {
      stage.wait();
      rotate(stage, shared, a.mean ? a.mean + head * D : nullptr, lane, row);
      const int next = tile + gridDim.x * warps;
      if (next < tiles) stage.begin(a, next, a.tokens, head, lane);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int token = min(16 * tile + 8 * r + g, a.tokens - 1);
        load_row<D>(row[r], a, (static_cast<int64_t>(token) * a.kv_heads + head) * D, head, t);
      }
    }
    float norm[2] = {1.f, 1.f}, inverse[2] = {1.f, 1.f};
    if (p.norm) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        norm[r] = row_norm(row[r]);
        inverse[r] = reciprocal_approx(norm[r]);
        if (t == 0) codes.norm(8 * r + g) = __half_as_ushort(__float2half_rn(norm[r]));
      }
    }
#pragma unroll
    for (int m = 0; m < D / 32; ++m) {
      float4 level[4];
      levels.unit(m, t, level);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x[8];
        bool clear;
        row[r].unit(m, x);
        UnitCodes found = near_levels(x, inverse[r], reach * norm[r], level, clear);
        if (!clear) found = nearest_levels(x, norm[r], steps + 32 * m, bits + 32 * m);
        codes.put(8 * r + g, 4 * m + t, found);
      }
    }
    __syncwarp();
    PlaneStore<D>(codes, at, lane).store(p);
    __syncwarp();
  }
}

template <int D, bool kRotated, template <int> class RowOf>
cudaError_t launch_planes(const WriteArguments& a, const PlaneArguments& p, cudaStream_t stream) {
  using Shared = PlaneShared<D, kRotated>;
  return launch_wave(write_planes<D, kRotated, RowOf>, Shared::kCommon, Shared::kEach, kPlaneWarps, a, stream,
                     a, p);
}
template <bool kRotated, template <int> class RowOf>
cudaError_t launch_planes(int dim, const WriteArguments& a, const PlaneArguments& p, cudaStream_t stream) {
  switch (dim) {
    case 64:
      return launch_planes<64, kRotated, RowOf>(a, p, stream);
    case 96:
      return launch_planes<96, kRotated, RowOf>(a, p, stream);
    case 128:
      return launch_planes<128, kRotated, RowOf>(a, p, stream);
    case 192:
      return launch_planes<192, kRotated, RowOf>(a, p, stream);
    default:
      return launch_planes<256, kRotated, RowOf>(a, p, stream);
  }
}

}  // namespace oscar::cuda
