// Internal: the kernel of score_stats.cuh.
//
// Products have queries as rows, so that sums over queries (u, w, x) stay in a lane's registers for the whole walk and sums
// over keys (mass, entropy, a) cross four lanes a tile. While a warpgroup waits for its products or the units that they
// keep busy are free, the others exponentiate.
#pragma once
#include "kernels/cuda/score_stats_lane.cuh"
#include "kernels/cuda/score_stats_walk.cuh"

namespace oscar::cuda {

// A sum over four lanes for each of two rows: the lanes with bit 1 get the second's.
OSCAR_DEVICE float sum_of_two(float first, float second) {
  const bool late = threadIdx.x & 2;
  const float sum = (late ? second : first) + __shfl_xor_sync(kWarp, late ? first : second, 2);
  return sum + __shfl_xor_sync(kWarp, sum, 1);
}
// Mass and entropy of two rows over four lanes: bit 1 of the lane takes the second row, bit 0 the entropy.
OSCAR_DEVICE float sum_of_four(const StatsRows& rows) {
  const bool late = threadIdx.x & 2, entropy = threadIdx.x & 1;
  const float mass =
      (late ? rows.mass[1] : rows.mass[0]) + __shfl_xor_sync(kWarp, late ? rows.mass[0] : rows.mass[1], 2);
  const float logs = (late ? rows.entropy[1] : rows.entropy[0]) +
                     __shfl_xor_sync(kWarp, late ? rows.entropy[0] : rows.entropy[1], 2);
  return (entropy ? logs : mass) + __shfl_xor_sync(kWarp, entropy ? mass : logs, 1);
}
// A part of a row sum as an integer.
struct FixedSum {
  int64_t value = 0;
  bool bounded = true;
  OSCAR_DEVICE void add(float part, float unit) {
    part *= unit;
    bounded = bounded && fabsf(part) < kLargestPart;
    value += __float2ll_rn(part);
  }
  OSCAR_DEVICE void leave(const StatsArguments& a, unsigned at) const {
    if (!bounded) a.broken[at] = 1;
    if (value != 0) atomicAdd(a.row_sums + at, static_cast<unsigned long long>(value));
  }
};

// The same of lanes without bit 0.
OSCAR_DEVICE void leave_one(const StatsArguments& a, float part, float unit, unsigned at) {
  FixedSum sum;
  sum.add(part, unit);
  if ((threadIdx.x & 1) == 0) sum.leave(a, at);
}

// Sums over the queries of the walk, of the four warps that share keys. `memory`: where tiles were.
template <bool kCap, bool kValues>
OSCAR_DEVICE void leave_columns(const StatsArguments& a, const StatsLane<kCap, kValues>& sums, float* memory,
                                int head, int segment, int block_key) {
  constexpr int kKeys = stats_pieces(kValues) * kTileRows, kSums = kValues ? 3 : 2;
  const int lane = threadIdx.x & 31;
  float* const mine = memory + threadIdx.x / 32 * kSums * kKeys;
#pragma unroll
  for (int piece = 0; piece < stats_pieces(kValues); ++piece) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int at = piece * kTileRows + 8 * i + 2 * (lane & 3) + c;
        const float u = sum_over_g(sums.u[piece][i][c]), w = sum_over_g(sums.w[piece][i][c]);
        if (lane < 4) {
          mine[at] = u;
          mine[kKeys + at] = w;
        }
        if constexpr (kValues) {
          const float x = sum_over_g(sums.x[i][c]);
          if (lane < 4) mine[2 * kKeys + at] = x;
        }
      }
    }
  }
  __syncthreads();
  for (int n = threadIdx.x; n < a.block_keys; n += blockDim.x) {
    if (block_key + n >= a.in.tokens) return;
    float sum[kSums] = {};
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < kSums; ++k) sum[k] += memory[((n / kKeys * 4 + i) * kSums + k) * kKeys + n % kKeys];
    }
    const int64_t to = (static_cast<int64_t>(segment) * a.in.kv_heads + head) * a.in.tokens + block_key + n;
    a.column_parts[to] = make_float2(sum[0], sum[1]);
    if constexpr (kValues) a.x_parts[to] = sum[2];
  }
}

template <bool kCap, bool kValues>
__global__ void __launch_bounds__(128 * stats_warpgroups(kValues), 1)
    score_stats_kernel(const __grid_constant__ StatsArguments a) {
  constexpr int kPieces = stats_pieces(kValues);
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  const int lane = threadIdx.x & 31, warp = __shfl_sync(kWarp, threadIdx.x / 32, 0), group = warp / 4,
            row_of_warp = 16 * (warp & 3);
  // The longest walks first: segments from the last on.
  const int head = blockIdx.x % a.in.kv_heads, pair = blockIdx.x / a.in.kv_heads, block = pair % a.blocks,
            segment = a.segments - 1 - pair / a.blocks;
  const int block_key = block * a.block_keys, group_key = block_key + group * kPieces * kTileRows;
  int first = segment * a.segment_queries, end = min(a.queries, first + a.segment_queries);
  if (!sees(a, first, end - 1, block_key)) return;
  while (first < end && !sees(a, first, min(first + kTileRows, end) - 1, block_key)) first += kTileRows;
  const auto last_tile = [&] { return first + (end - 1 - first) / kTileRows * kTileRows; };
  while (first < end && !sees(a, last_tile(), end - 1, block_key)) end = last_tile();
  const int count = max(end - first + kTileRows - 1, 0) / kTileRows;

  StatsWalk<kValues> walk(a, shared, head, first / kTileRows, count, block_key);
  __syncthreads();
  walk.start(group);
  StatsLane<kCap, kValues> sums;
  float d[2][32];
  const float scale = a.in.scale * kLog2e;
  const uint32_t keys = shared + group * kPieces * a.q_tiles * kTileBlock,
                 values = shared + a.shared.values + group * a.v_tiles * kTileBlock;
  const int sink_end = static_cast<int>(a.in.sink), recent = static_cast<int>(a.in.recent),
            window = static_cast<int>(a.in.sliding_window);
  const int row_of_lane = lane / 4;  // of the warp's
  const unsigned sum_count = kTileRows * a.tiles * a.in.kv_heads * a.in.group;
  // This lane's row sums: mass or entropy of one of its rows.
  unsigned row = (head * a.in.group * a.tiles + first / kTileRows) * kTileRows + row_of_warp + row_of_lane +
                 4 * (lane & 2);
  for (int m = 0, of_head = 0; m < walk.total(); ++m) {
    walk.wait(m);
    const uint32_t tile = walk.tile();
    tile_product<1, 1>(d[0], tile, keys, a.q_tiles);
    if constexpr (kValues) {
      tile_product<2, 1>(d[1], tile + a.q_tiles * kTileBlock, values, a.v_tiles);
    } else {
      tile_product<1, 1>(d[1], tile, keys + a.q_tiles * kTileBlock, a.q_tiles);
    }
    walk.more(m);

    const auto& of_rows = *reinterpret_cast<const WarpRows*>(memory + walk.rows(m, of_head + 1 == count));
    const int earliest = of_rows.time[0], latest = of_rows.time[15];
    StatsRows rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.offset[r] = of_rows.lse[row_of_lane + 8 * r];
    FixedSum sum;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int key = group_key + piece * kTileRows, last_key = key + kTileRows - 1;
      float squares[32];
      if (piece == 0) {
        tile_wait<1>(d[0]);
      } else {
        tile_wait<0>(d[1]);
      }
      // Absent rows are a tile's last, with time -1.
      const bool seen = earliest >= 0 && (latest < 0 || latest >= key) && earliest - last_key < window;
      if (seen) {
        rows.clear();
        if (!kCap && latest >= 0 && key >= sink_end && last_key <= earliest - recent &&
            latest - key < window) {
          sums.add_plain(d[piece], squares, piece, scale, rows);
        } else {
          const int times[2] = {of_rows.time[row_of_lane], of_rows.time[row_of_lane + 8]};
          sums.add_masked(a, d[piece], squares, piece, scale, key + 2 * (lane & 3), times, rows);
          if (key < sink_end)
            leave_one(a, sum_of_two(rows.sink_mass[0], rows.sink_mass[1]), kFixedPoint,
                      row + kSink * sum_count);
        }
        sum.add(sum_of_four(rows), kFixedPoint);
      }
      if (piece + 1 == kPieces) sum.leave(a, row + (lane & 1) * sum_count);
      if constexpr (kValues) {
        tile_wait<0>(d[1]);
        if (seen) {
          sums.add_values(squares, d[1], of_rows.value_norms + 2 * (lane & 3),
                          of_rows.output_norm + row_of_lane, rows);
          leave_one(a, sum_of_two(rows.sensitivity[0], rows.sensitivity[1]),
                    of_rows.unit[row_of_lane + 4 * (lane & 2)], row + kSensitivity * sum_count);
        }
      }
    }
    row += kTileRows;
    if (++of_head == count) {
      of_head = 0;
      row += kTileRows * (a.tiles - count);
    }
    walk.advance();
  }
  __syncthreads();
  leave_columns(a, sums, reinterpret_cast<float*>(memory + a.shared.stages), head, segment, block_key);
}

template <bool kValues>
cudaError_t launch_stats_kernel(const StatsArguments& a, cudaStream_t stream) {
  const auto kernel =
      a.in.logit_cap > 0 ? score_stats_kernel<true, kValues> : score_stats_kernel<false, kValues>;
  if (const auto e =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, a.shared.bytes))
    return e;
  kernel<<<a.blocks * a.segments * a.in.kv_heads, 128 * a.warpgroups, a.shared.bytes, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace oscar::cuda
