// Row and column sums of attention probabilities: a block owns keys and walks over queries.
//
// The cheapest order that was found: a warp keeps 32 keys as operands in registers and multiplies them with
// eight queries at a time, so that a product is (key, query) and its four values a lane are two keys of two
// queries. Sums over queries (u, w) stay in registers until the end; sums over keys (mass, entropy) are added
// up over the warp's keys in the lane, cross the lanes once for eight queries, meet the other warps' in
// shared memory and leave as one float2 for 512 keys.
#pragma once
#include <type_traits>

#include "kernels/cuda/common.cuh"
#include "kernels/score_stats_device.h"

namespace oscar::cuda {

inline constexpr int kSegmentRows = 2048;  // (query, head) rows that a block walks over
inline constexpr int kWarpKeys = 32;
constexpr int stats_warps(int dim) {
  return dim <= 128 ? 16 : 8;
}  // registers
constexpr int stats_keys(int dim) {
  return kWarpKeys * stats_warps(dim);
}  // a block's
constexpr int stats_rows(int dim) {
  return dim <= 128 ? 128 : 64;
}  // in shared memory at a time

struct StatsArguments {
  ScoreStatsBatch in;
  int64_t queries;                    // N
  int rows;                           // N * group, ordered by query
  unsigned group_inverse;             // 2^32 / group, rounded up
  int blocks, segments, sink_blocks;  // key blocks, row segments, key blocks that begin before the sink ends
  float2* row_parts;                  // [key block][kv_heads][rows] mass, sum p log2 p
  float* sink_parts;                  // [sink block][kv_heads][rows]
  float2* column_parts;               // [segment][kv_heads][tokens] u, w
};

// row / group by a product; rows * group < 2^32.
OSCAR_DEVICE int quotient_of(const StatsArguments& a, int row) {
  return a.in.group == 1 ? row : static_cast<int>(__umulhi(row, a.group_inverse));
}
OSCAR_DEVICE int query_of(const StatsArguments& a, int row) {
  const int n = quotient_of(a, row);
  return a.in.queries ? a.in.queries[n] : n;
}
OSCAR_DEVICE int head_of(const StatsArguments& a, int head, int row) {
  return head * a.in.group + row - quotient_of(a, row) * a.in.group;
}
OSCAR_DEVICE void copy16_or_zero(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
               : "memory");
}
OSCAR_DEVICE uint4 round8(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  const __nv_bfloat162 v[4] = {__floats2bfloat162_rn(a.x, a.y), __floats2bfloat162_rn(a.z, a.w),
                               __floats2bfloat162_rn(b.x, b.y), __floats2bfloat162_rn(b.z, b.w)};
  return *reinterpret_cast<const uint4*>(v);
}

template <int D>
struct StatsShared {
  static constexpr int kRows = stats_rows(D), kWarps = stats_warps(D);
  uint4 q[2][kRows * (D / 8)];
  float row_parts[2][kWarps][2][kRows];  // mass, sum p log2 p
  float sink_parts[2][kWarps][kRows];
  int query[2][kRows];     // -1: no such row
  float offset[2][kRows];  // lse * log2 e
};

// Tile `tile` of queries on its way into stage `stage`. Rows of 16-byte pieces; every other row has its
// halves of eight pieces swapped, so that the eight lanes of a load meet all banks.
template <int D>
OSCAR_DEVICE int piece_of(int row, int piece) {
  return row * (D / 8) + (D % 64 == 0 ? piece ^ 4 * (row & 1) : piece);
}
template <int D>
OSCAR_DEVICE void fetch_tile(const StatsArguments& a, int head, int first, int end, int stage,
                             StatsShared<D>& shared) {
  constexpr int kThreads = 32 * stats_warps(D);
#pragma unroll
  for (int n = threadIdx.x; n < stats_rows(D) * (D / 8); n += kThreads) {
    const int r = n / (D / 8), piece = n % (D / 8), row = first + r;
    const bool present = row < end && 8 * piece < a.in.dim;
    const int64_t from = present ? query_of(a, row) * a.in.q_stride +
                                       static_cast<int64_t>(head_of(a, head, row)) * a.in.dim + 8 * piece
                                 : 0;
    uint4* to = &shared.q[stage][piece_of<D>(r, piece)];
    if (a.in.type == FloatType::bf16) {
      copy16_or_zero(shared_address(to), static_cast<const __nv_bfloat16*>(a.in.q) + from, present);
    } else {
      *to = present ? round8(static_cast<const float*>(a.in.q) + from) : make_uint4(0, 0, 0, 0);
    }
  }
  if (threadIdx.x < stats_rows(D)) {
    const int row = first + static_cast<int>(threadIdx.x);
    const int t = row < end ? query_of(a, row) : -1;
    shared.query[stage][threadIdx.x] = t;
    shared.offset[stage][threadIdx.x] =
        t >= 0 ? kLog2e * a.in.lse[head_of(a, head, row) * a.in.lse_stride + t] : 0.f;
  }
  copy_commit();
}

// Eight queries of a warp's keys: this lane's two, then of all its keys.
struct RowSums {
  float mass[2] = {}, entropy[2] = {}, sink[2] = {};
};

// Masks of one element.
struct Bounds {
  int sink, recent, window;  // window: INT_MAX where there is none
  OSCAR_DEVICE bool visible(int s, int t) const { return s <= t && t - s < window; }
  OSCAR_DEVICE bool history(int s, int t) const { return s >= sink && s <= t - recent; }
};

// One element: a key and a query of two groups of eight.
template <bool kPlain>
OSCAR_DEVICE void add_score(const StatsArguments& a, const Bounds& bounds, float product, float scale,
                            float offset, int s, int t, float& mass, float& entropy, float& sink, float& u,
                            float& w) {
  if constexpr (kPlain) {
    const float x = fmaf(product, scale, -offset), p = exp2_approx(x);
    mass += p;
    entropy = fmaf(p, x, entropy);
    u += p;
    w = fmaf(p, p, w);
  } else {
    float x = product * scale;
    if (a.in.logit_cap > 0) x = a.in.logit_cap * kLog2e * tanhf(product * a.in.scale / a.in.logit_cap);
    x -= offset;
    if (!bounds.visible(s, t)) return;
    const float p = exp2_approx(x);
    entropy = fmaf(p, x, entropy);
    if (s < bounds.sink) sink += p;
    if (!bounds.history(s, t)) return;
    mass += p;
    u += p;
    w = fmaf(p, p, w);
  }
}

// Operands of a warp's keys: steps 2 m + h, rows g and g + 8 of a tile of 16, channels 32 m + 8 t + 4 h ..
// + 3.
template <int D>
OSCAR_DEVICE void load_keys(const StatsArguments& a, int head, int warp_key, bool wanted, int lane,
                            unsigned (&k)[2][D / 32][2][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int s = warp_key + 16 * i + 8 * r + lane / 4;
#pragma unroll
      for (int m = 0; m < D / 32; ++m) {
        const int channel = 32 * m + 8 * (lane & 3);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (wanted && s < a.in.tokens && channel < a.in.dim) {
          const int64_t from = s * a.in.k_stride + static_cast<int64_t>(head) * a.in.dim + channel;
          v = a.in.type == FloatType::bf16
                  ? *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.in.k) + from)
                  : round8(static_cast<const float*>(a.in.k) + from);
        }
        k[i][m][0][r] = v.x;
        k[i][m][0][2 + r] = v.y;
        k[i][m][1][r] = v.z;
        k[i][m][1][2 + r] = v.w;
      }
    }
  }
}

template <int D>
__global__ void __launch_bounds__(32 * stats_warps(D), 1) score_stats_kernel(const StatsArguments a) {
  constexpr int kRows = stats_rows(D), kUnits = D / 32;
  extern __shared__ uint4 dynamic[];
  auto& shared = *reinterpret_cast<StatsShared<D>*>(dynamic);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane / 4, t4 = lane & 3;
  const int block = blockIdx.x % a.blocks, segment = blockIdx.x / a.blocks, head = blockIdx.y;
  const int tokens = static_cast<int>(a.in.tokens);
  const Bounds bounds{static_cast<int>(a.in.sink), static_cast<int>(a.in.recent),
                      a.in.sliding_window > 0 ? static_cast<int>(a.in.sliding_window) : INT_MAX};
  const int block_key = block * stats_keys(D), warp_key = block_key + warp * kWarpKeys,
            last_key = warp_key + kWarpKeys - 1;
  const int end = min(a.rows, (segment + 1) * kSegmentRows);
  // Rows of the segment from the first that sees the block's first key on.
  int first = segment * kSegmentRows;
  while (first < end && query_of(a, min(first + kRows, end) - 1) < block_key) first += kRows;

  unsigned k[2][kUnits][2][4];
  load_keys<D>(a, head, warp_key, first < end, lane, k);
  float u[2][2] = {}, w[2][2] = {};
  const float scale = a.in.scale * kLog2e;
  // A tile's row sums over the block's keys: two threads a sum, each half of the warps.
  const auto leave = [&](int row0, int stage) {
    constexpr int kHalf = stats_warps(D) / 2;
    const int which = threadIdx.x / 2 / kRows, r = threadIdx.x / 2 % kRows, from = threadIdx.x % 2 * kHalf;
    static_assert(32 * stats_warps(D) == 4 * kRows);
    float sum = 0, sink = 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) sum += shared.row_parts[stage][from + i][which][r];
    sum += __shfl_xor_sync(kWarp, sum, 1);
    const int64_t at = (static_cast<int64_t>(block) * a.in.kv_heads + head) * a.rows + row0 + r;
    if (from == 0 && row0 + r < end) reinterpret_cast<float*>(a.row_parts + at)[which] = sum;
    if (block >= a.sink_blocks || which != 0 || from != 0 || row0 + r >= end) return;
    for (int i = 0; i < stats_warps(D); ++i) sink += shared.sink_parts[stage][i][r];
    a.sink_parts[at] = sink;
  };
  // Whether nothing of these queries' times and this warp's keys is masked.
  const auto is_plain = [&](int earliest, int latest) {
    return latest >= 0 && a.in.logit_cap == 0 && warp_key >= bounds.sink &&
           last_key <= earliest - bounds.recent && latest - warp_key < bounds.window;
  };
  // Pieces 4 m + t of row g are at `even` + 4 m for even m, at `odd` + 4 (m - 1) for odd m; see piece_of().
  const bool swapped = D % 64 == 0 && g % 2;
  const uint32_t queries = shared_address(shared.q[0]);
  const uint32_t even = queries + 16 * (g * (D / 8) + t4 + (swapped ? 4 : 0)),
                 odd = queries + 16 * (g * (D / 8) + t4 + (swapped ? 0 : 4));
  // Which of eight sums this lane keeps, see below.
  const bool late = lane & 16, second = lane & 8, entropy = lane & 4;
  float* const part = &shared.row_parts[0][warp][entropy][8 * late + 2 * t4 + second];

  if (first < end) fetch_tile<D>(a, head, first, end, 0, shared);
  int stage = 0, row0 = first;
  for (; row0 < end; row0 += kRows, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    if (row0 + kRows < end) fetch_tile<D>(a, head, row0 + kRows, end, stage ^ 1, shared);
    if (row0 > first) leave(row0 - kRows, stage ^ 1);
    const bool all_plain = is_plain(shared.query[stage][0], shared.query[stage][kRows - 1]);
    const float* offsets = &shared.offset[stage][2 * t4];
    const int* times = &shared.query[stage][0];
#pragma unroll 1
    for (int n = 0; n < kRows; n += 16) {  // 16 queries as two groups of eight
      RowSums sums[2];
      bool plain = true, unseen = false;
      if (!all_plain) {
        const int earliest = times[n], latest = times[n + 15];
        plain = is_plain(earliest, latest);
        unseen = latest >= 0 && (warp_key > latest || earliest - last_key >= bounds.window);
      }
      if (!unseen) {
        float d[2][2][4] = {};  // [group][tile of keys]
        const uint32_t from = 16 * (D / 8) * (stage * kRows + n);
#pragma unroll
        for (int m = 0; m < kUnits; ++m) {
          const uint32_t at = (m % 2 ? odd : even) + from + 64 * (m & ~1);
          const uint4 x = load_shared4(at), y = load_shared4(at + 16 * D);  // eight rows on
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const unsigned(&o)[4] = k[i][m][h];
              product_bf16(d[0][i], o[0], o[1], o[2], o[3], h ? x.z : x.x, h ? x.w : x.y);
              product_bf16(d[1][i], o[0], o[1], o[2], o[3], h ? y.z : y.x, h ? y.w : y.y);
            }
          }
        }
        const auto add = [&](auto without_masks) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int2 t = *reinterpret_cast<const int2*>(&times[n + 8 * j + 2 * t4]);
            const float2 lse = *reinterpret_cast<const float2*>(&offsets[n + 8 * j]);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                const int c = e % 2, r = e / 2;
                add_score<without_masks.value>(a, bounds, d[j][i][e], scale, c ? lse.y : lse.x,
                                               warp_key + 16 * i + 8 * r + g, c ? t.y : t.x, sums[j].mass[c],
                                               sums[j].entropy[c], sums[j].sink[c], u[i][r], w[i][r]);
              }
            }
          }
        };
        if (plain) {
          add(std::true_type());
        } else {
          add(std::false_type());
        }
      }
      // Sums over the lanes that share t: bit 4 of the lane takes the second group of queries, bit 3 the
      // second query of two, bit 2 the entropy, so that each lane ends with one sum of all keys.
      float half[2][2];  // [query][mass, entropy]
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        half[c][0] = (late ? sums[1].mass[c] : sums[0].mass[c]) +
                     __shfl_xor_sync(kWarp, late ? sums[0].mass[c] : sums[1].mass[c], 16);
        half[c][1] = (late ? sums[1].entropy[c] : sums[0].entropy[c]) +
                     __shfl_xor_sync(kWarp, late ? sums[0].entropy[c] : sums[1].entropy[c], 16);
      }
      float one[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        one[e] =
            (second ? half[1][e] : half[0][e]) + __shfl_xor_sync(kWarp, second ? half[0][e] : half[1][e], 8);
      }
      const float sum = (entropy ? one[1] : one[0]) + __shfl_xor_sync(kWarp, entropy ? one[0] : one[1], 4);
      part[stage * 2 * stats_warps(D) * kRows + n] = sum;
      if (block < a.sink_blocks) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = sum_over_g(sums[j].sink[0]), y = sum_over_g(sums[j].sink[1]);
          if (g == 0)
            *reinterpret_cast<float2*>(&shared.sink_parts[stage][warp][n + 8 * j + 2 * t4]) =
                make_float2(x, y);
        }
      }
    }
  }
  __syncthreads();
  if (first < end) leave(row0 - kRows, stage ^ 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float2 sum = make_float2(u[i][r], w[i][r]);
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        sum.x += __shfl_xor_sync(kWarp, sum.x, distance);
        sum.y += __shfl_xor_sync(kWarp, sum.y, distance);
      }
      const int s = warp_key + 16 * i + 8 * r + g;
      if (t4 == 0 && s < tokens) {
        a.column_parts[(static_cast<int64_t>(segment) * a.in.kv_heads + head) * tokens + s] = sum;
      }
    }
  }
}

template <int D>
cudaError_t launch_stats(const StatsArguments& a, cudaStream_t stream) {
  const int shared = static_cast<int>(sizeof(StatsShared<D>));
  const auto kernel = score_stats_kernel<D>;
  if (const auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared))
    return e;
  kernel<<<dim3(a.blocks * a.segments, a.in.kv_heads), 32 * stats_warps(D), shared, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t launch_stats_64(const StatsArguments& a, cudaStream_t stream);
cudaError_t launch_stats_96(const StatsArguments& a, cudaStream_t stream);
cudaError_t launch_stats_128(const StatsArguments& a, cudaStream_t stream);
cudaError_t launch_stats_256(const StatsArguments& a, cudaStream_t stream);

}  // namespace oscar::cuda
