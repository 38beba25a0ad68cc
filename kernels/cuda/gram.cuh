// Second moments on the matrix unit: sum of w x^T x over a part of the rows of one query head.
//
// With x as it lies in memory (a row a token), ldmatrix.trans makes of 16 rows and 16 columns both operands: the
// registers of the left one are those of the right one in another order. So columns are cut into strips of
// 16, a warp owns two strips p and p + S/2 of S, and multiplies them with the strips that follow them in a
// circle: the first with those at distances 0..S/2, the second with those at 0..S/2-1. That meets every pair of
// strips once, and every warp has the same S + 1 products of strips.
//
// A weighted row becomes two bfloat16 rows, w x = high + low, on the left side.
#pragma once
#include "kernels/cuda/common.cuh"
#include "kernels/gram_device.h"

namespace oscar::cuda {

template <int D>
struct GramShape {
  static constexpr int kStrips = D / 16, kHalf = kStrips / 2, kBlocks = kStrips + 1;  // blocks: of a warp
  static constexpr int kWarps = kHalf;                                                // a weighting
  static constexpr int kTogether = D <= 128 ? kMaxWeightings : 1;                     // weightings of a block
  static constexpr int kRows = D <= 128 ? 32 : 16, kStages = 4;                       // in shared memory
  static constexpr int kPitch = 2 * D + 16;           // bytes: the eight rows of a load meet all banks
  static constexpr int kTiles = kHalf * kBlocks * 2;  // (16, 8) products of a part
};

struct GramArguments {
  GramBatch in;
  int rows, chunks, parts;  // rows of a part; parts of a query head; parts of a head
  float4* tiles;            // [heads][weightings][parts][kTiles][lane]
  float* sums;              // [heads][weightings][parts][D]
  double* totals;           // [heads][weightings][parts]
};

template <int kBytes>
OSCAR_DEVICE void copy_or_zero(uint32_t to, const void* from, bool present) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(to), "l"(from), "r"(present ? 4 : 0)
                 : "memory");
}
// Four (8, 8) squares, each with rows and columns changed, from where eight lanes each say that its rows lie.
OSCAR_DEVICE void load_squares(unsigned (&m)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(from)
               : "memory");
}
// Two rows of one column times their weights, as high + low; what is lost is 2^-18 of it at most.
OSCAR_DEVICE void weigh(unsigned x, float2 w, unsigned& high, unsigned& low) {
  const float a = __uint_as_float(x << 16), b = __uint_as_float(x & 0xffff0000u);
  const auto pack = [](float lower, float upper) {
    unsigned v;
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(v) : "f"(upper), "f"(lower));
    return v;
  };
  high = pack(a * w.x, b * w.y);
  low = pack(fmaf(a, w.x, -__uint_as_float(high << 16)), fmaf(b, w.y, -__uint_as_float(high & 0xffff0000u)));
}

template <int D>
struct GramShared {
  using S = GramShape<D>;
  uint8_t rows[S::kStages][S::kRows * S::kPitch];
  float weights[S::kStages][S::kTogether][S::kRows];
};

// What a warp adds up.
template <int D>
struct GramSums {
  float blocks[GramShape<D>::kBlocks][2][4];
  float rows[2][4];  // of the two strips: every column is the sum of w x
};

template <int D>
OSCAR_DEVICE void fetch_rows(const GramArguments& a, const uint16_t* rows, const float* const* weights,
                             int tile, int count, GramShared<D>& shared) {
  using S = GramShape<D>;
  const int first = tile * S::kRows, stage = tile % S::kStages;
  const uint32_t to = shared_address(shared.rows[stage]);
  for (int p = threadIdx.x; p < S::kRows * (D / 8); p += blockDim.x) {
    const int row = p / (D / 8), piece = p % (D / 8);
    const bool present = first + row < count && piece * 8 < a.in.dim;
    copy_or_zero<16>(to + row * S::kPitch + piece * 16,
                     present ? rows + (first + row) * a.in.stride + piece * 8 : rows, present);
  }
#pragma unroll
  for (int w = 0; w < S::kTogether; ++w) {
    if (!weights[w]) continue;
    for (int row = threadIdx.x; row < S::kRows; row += blockDim.x) {
      const bool present = first + row < count;
      copy_or_zero<4>(shared_address(&shared.weights[stage][w][row]),
                      weights[w] + (present ? first + row : 0), present);
    }
  }
}

// Sixteen rows. `left`, `right`: where this lane's row of strip 0 lies, as the left operand and the right one
// order their squares.
template <int D, bool kWeighted>
OSCAR_DEVICE void add_sixteen(GramSums<D>& sums, uint32_t left, uint32_t right, int pair,
                              const float* weights) {
  using S = GramShape<D>;
  constexpr unsigned kOnes = 0x3f803f80u;
  const auto strip = [&](int distance) {
    const int s = pair + distance;
    return 32 * (s < S::kStrips ? s : s - S::kStrips);
  };
  unsigned high[2][4], low[2][4], column[2][2][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) load_squares(high[i], left + 32 * (pair + i * S::kHalf));
#pragma unroll
  for (int e = 0; e < 2; ++e) load_squares(column[0][e], right + strip(e));
  if constexpr (kWeighted) {
    const int t = 2 * (threadIdx.x & 3);
    const float2 w[2] = {*reinterpret_cast<const float2*>(weights + t),
                         *reinterpret_cast<const float2*>(weights + t + 8)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) weigh(high[i][r], w[r / 2], high[i][r], low[i][r]);
    }
  }
  const auto multiply = [](float(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) {
    product_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    multiply(sums.rows[i], high[i], kOnes, kOnes);
    if constexpr (kWeighted) multiply(sums.rows[i], low[i], kOnes, kOnes);
  }
#pragma unroll
  for (int first = 0; first < S::kStrips; first += 2) {
    const unsigned(&now)[2][4] = column[first / 2 & 1];
    if (first + 2 < S::kStrips) {
#pragma unroll
      for (int e = 0; e < 2; ++e) load_squares(column[(first / 2 & 1) ^ 1][e], right + strip(first + 2 + e));
    }
#pragma unroll
    for (int part = 0; part < (kWeighted ? 2 : 1); ++part) {
      const auto& parts = part == 0 ? high : low;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int distance = first + e;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned b0 = now[e][2 * half], b1 = now[e][2 * half + 1];
          if (distance <= S::kHalf) multiply(sums.blocks[distance][half], parts[0], b0, b1);
          if (distance >= S::kHalf) multiply(sums.blocks[distance + 1][half], parts[1], b0, b1);
        }
      }
    }
  }
}

template <int D>
OSCAR_DEVICE void leave_sums(const GramArguments& a, const GramSums<D>& sums, int64_t slot, int pair) {
  using S = GramShape<D>;
  const int lane = threadIdx.x & 31;
  float4* tiles = a.tiles + (slot * S::kTiles + pair * S::kBlocks * 2) * 32 + lane;
#pragma unroll
  for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float(&d)[4] = sums.blocks[b][half];
      tiles[(b * 2 + half) * 32] = make_float4(d[0], d[1], d[2], d[3]);
    }
  }
  if ((lane & 3) != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* to = a.sums + slot * D + 16 * (pair + i * S::kHalf) + lane / 4;
    to[0] = sums.rows[i][0];
    to[8] = sums.rows[i][2];
  }
}

// A block is a part of a head and kTogether weightings, kWarps warps each. Grid: parts, heads, weightings /
// kTogether.
template <int D>
__global__ void __launch_bounds__(32 * GramShape<D>::kWarps * GramShape<D>::kTogether, 1)
    gram_kernel(const GramArguments a) {
  using S = GramShape<D>;
  __shared__ alignas(16) GramShared<D> shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, pair = warp % S::kWarps, own = warp / S::kWarps,
            which0 = blockIdx.z * S::kTogether, which = which0 + own;
  const int part = blockIdx.x, head = blockIdx.y, first = part % a.chunks * a.rows,
            query_head = head * a.in.group + part / a.chunks;
  const int count = static_cast<int>(min(static_cast<int64_t>(a.rows), a.in.n - first));
  const auto* rows = static_cast<const uint16_t*>(a.in.rows) + first * a.in.stride +
                     static_cast<int64_t>(query_head) * a.in.dim;
  const float* weights[S::kTogether];
#pragma unroll
  for (int w = 0; w < S::kTogether; ++w) {
    const float* from = which0 + w < a.in.weightings ? a.in.weights[which0 + w] : nullptr;
    weights[w] = from ? from + query_head * a.in.n + first : nullptr;
  }
  const float* const own_weights =
      a.in.weights[which] ? a.in.weights[which] + query_head * a.in.n + first : nullptr;

  GramSums<D> sums = {};
  const int tiles = (count + S::kRows - 1) / S::kRows;
  for (int tile = 0; tile < S::kStages - 1; ++tile) {
    if (tile < tiles) fetch_rows(a, rows, weights, tile, count, shared);
    copy_commit();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    copy_wait<S::kStages - 2>();
    __syncthreads();
    if (tile + S::kStages - 1 < tiles) fetch_rows(a, rows, weights, tile + S::kStages - 1, count, shared);
    copy_commit();
    const int stage = tile % S::kStages;
    const uint32_t tile_rows = shared_address(shared.rows[stage]) + (lane & 7) * S::kPitch;
    const int one = lane >> 3 & 1, other = lane >> 4;
    const uint32_t left = tile_rows + other * 8 * S::kPitch + one * 16,
                   right = tile_rows + one * 8 * S::kPitch + other * 16;
    const float* w = shared.weights[stage][own];
#pragma unroll 1
    for (int row = 0; row < S::kRows; row += 16) {
      if (own_weights)
        add_sixteen<D, true>(sums, left + row * S::kPitch, right + row * S::kPitch, pair, w + row);
      else
        add_sixteen<D, false>(sums, left + row * S::kPitch, right + row * S::kPitch, pair, w + row);
    }
  }
  launch_dependents();
  const int64_t slot = (static_cast<int64_t>(head) * a.in.weightings + which) * a.parts + part;
  leave_sums(a, sums, slot, pair);
  if (pair != 0 || !a.in.total[which]) return;
  double total = 0;
  for (int r = lane; r < count; r += 32) total += own_weights ? own_weights[r] : 1.0f;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(kWarp, total, distance);
  if (lane == 0) a.totals[slot] = total;
}

template <int D>
cudaError_t launch_gram(const GramArguments& a, cudaStream_t stream) {
  using S = GramShape<D>;
  const int together = S::kTogether < a.in.weightings ? S::kTogether : a.in.weightings;
  const dim3 grid(a.parts, a.in.heads, (a.in.weightings + together - 1) / together);
  gram_kernel<D><<<grid, 32 * S::kWarps * together, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t launch_gram_64(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_96(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_128(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_192(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_256(const GramArguments& a, cudaStream_t stream);

}  // namespace oscar::cuda
