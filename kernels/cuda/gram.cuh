// Second moments on the matrix unit: sum of w x^T x over a part of the rows of one query head.
//
// With x as it lies in memory (a row a token), ldmatrix.trans makes of 16 rows and 16 columns both operands: the
// registers of the left one are those of the right one in another order. So columns are cut into S strips of 16,
// a warp owns a strip, and multiplies it with itself and the strips that follow it in a circle, up to the distance
// S/2 (strips of the second half: S/2 - 1). That meets every pair of strips once.
//
// A weighted row becomes two bfloat16 rows, w x = high + low, on the left side.
#pragma once
#include "kernels/cuda/common.cuh"
#include "kernels/gram_device.h"

namespace oscar::cuda {

template <int D>
struct GramShape {
  static constexpr int kStrips = D / 16, kHalf = kStrips / 2;      // a strip is a warp of a weighting
  static constexpr int kTogether = D <= 128 ? kMaxWeightings : 1;  // weightings of a block
  static constexpr int kRows = D <= 128 ? 64 : 32, kStages = 4;    // in shared memory
  static constexpr int kPitch = 2 * D + 16;               // bytes: the eight rows of a load meet all banks
  static constexpr int kTiles = kStrips * (kStrips + 1);  // (16, 8) products of a part
  // The first tile of a strip; it has two for each distance.
  static OSCAR_DEVICE int first_tile(int strip) {
    return 2 * (strip * (kHalf + 1) - (strip > kHalf ? strip - kHalf : 0));
  }
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
// Four (8, 8) squares of 16 rows: rows 0..7 and 8..15 of columns 0..7, then of columns 8..15. A register holds a
// lane's two rows of one column.
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
  float blocks[GramShape<D>::kHalf + 1][2][4];  // by distance
  float rows[4];                                // every column is the sum of w x
};

// Sixteen rows. `rows`: where this lane's row of strip 0 lies.
template <int D, bool kWeighted>
OSCAR_DEVICE void add_sixteen(GramSums<D>& sums, uint32_t rows, int strip, const float* weights) {
  using S = GramShape<D>;
  constexpr unsigned kOnes = 0x3f803f80u;
  const auto place = [&](int distance) {
    const int s = strip + distance;
    return rows + 32 * (s < S::kStrips ? s : s - S::kStrips);
  };
  const auto multiply = [](float(&d)[4], const unsigned(&left)[4], unsigned b0, unsigned b1) {
    product_bf16(d, left[0], left[1], left[2], left[3], b0, b1);
  };
  unsigned high[4], low[4], columns[2][4];
  load_squares(columns[0], place(0));
  float2 w[2];
  if constexpr (kWeighted) {
    const int t = 2 * (threadIdx.x & 3);
    w[0] = *reinterpret_cast<const float2*>(weights + t);
    w[1] = *reinterpret_cast<const float2*>(weights + t + 8);
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const unsigned x = columns[0][r == 1 ? 2 : r == 2 ? 1 : r];
    if constexpr (kWeighted)
      weigh(x, w[r / 2], high[r], low[r]);
    else
      high[r] = x;
  }
  multiply(sums.rows, high, kOnes, kOnes);
  if constexpr (kWeighted) multiply(sums.rows, low, kOnes, kOnes);
#pragma unroll
  for (int distance = 0; distance <= S::kHalf; ++distance) {
    const unsigned(&now)[4] = columns[distance & 1];
    if (distance == S::kHalf && strip >= S::kHalf) break;
    if (distance < S::kHalf) load_squares(columns[(distance & 1) ^ 1], place(distance + 1));
#pragma unroll
    for (int part = 0; part < (kWeighted ? 2 : 1); ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        multiply(sums.blocks[distance][half], part == 0 ? high : low, now[2 * half], now[2 * half + 1]);
    }
  }
}

template <int D>
OSCAR_DEVICE void leave_sums(const GramArguments& a, const GramSums<D>& sums, int64_t slot, int strip) {
  using S = GramShape<D>;
  const int lane = threadIdx.x & 31;
  float4* tiles = a.tiles + (slot * S::kTiles + S::first_tile(strip)) * 32 + lane;
#pragma unroll
  for (int distance = 0; distance <= S::kHalf; ++distance) {
    if (distance == S::kHalf && strip >= S::kHalf) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float(&d)[4] = sums.blocks[distance][half];
      tiles[(distance * 2 + half) * 32] = make_float4(d[0], d[1], d[2], d[3]);
    }
  }
  if ((lane & 3) != 0) return;
  float* to = a.sums + slot * D + 16 * strip + lane / 4;
  to[0] = sums.rows[0];
  to[8] = sums.rows[2];
}

// A block is a part of a head and kTogether weightings, a warp a strip each. Grid: parts, heads, weightings /
// kTogether.
template <int D>
__global__ void __launch_bounds__(2 * D * GramShape<D>::kTogether, 1) gram_kernel(const GramArguments a) {
  using S = GramShape<D>;
  extern __shared__ uint8_t memory[];
  auto& shared = *reinterpret_cast<GramShared<D>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, strip = warp % S::kStrips,
            own = warp / S::kStrips, which = blockIdx.z * S::kTogether + own;
  const int part = blockIdx.x, head = blockIdx.y, first = part % a.chunks * a.rows,
            query_head = head * a.in.group + part / a.chunks;
  const int count = static_cast<int>(min(static_cast<int64_t>(a.rows), a.in.n - first));
  const float* const weights =
      a.in.weights[which] ? a.in.weights[which] + query_head * a.in.n + first : nullptr;

  // The warps of the first weighting, which mostly is all one, copy rows, sixteen at a time; each weighting's first
  // warp its weights.
  const int piece = threadIdx.x % (D / 8), row0 = threadIdx.x / (D / 8);
  const bool padding = piece * 8 >= a.in.dim;
  const auto* from = static_cast<const uint16_t*>(a.in.rows) + (first + row0) * a.in.stride +
                     static_cast<int64_t>(query_head) * a.in.dim + (padding ? 0 : piece * 8);
  const uint32_t to = shared_address(shared.rows) + row0 * S::kPitch + piece * 16;
  const auto fetch = [&](int tile) {
    const int stage = tile % S::kStages, rest = count - tile * S::kRows;
    if (own == 0) {
#pragma unroll
      for (int row = 0; row < S::kRows; row += 16) {
        const bool present = row + row0 < rest && !padding;
        copy_or_zero<16>(to + (stage * S::kRows + row) * S::kPitch, from + (present ? row * a.in.stride : 0),
                         present);
      }
      from += S::kRows * a.in.stride;
    }
    if (weights && strip == 0) {
#pragma unroll
      for (int row = lane; row < S::kRows; row += 32)
        copy_or_zero<4>(shared_address(&shared.weights[stage][own][row]),
                        weights + (row < rest ? tile * S::kRows + row : 0), row < rest);
    }
  };

  GramSums<D> sums = {};
  const int tiles = (count + S::kRows - 1) / S::kRows;
  for (int tile = 0; tile < S::kStages - 1; ++tile) {
    if (tile < tiles) fetch(tile);
    copy_commit();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    copy_wait<S::kStages - 2>();
    __syncthreads();
    if (tile + S::kStages - 1 < tiles) fetch(tile + S::kStages - 1);
    copy_commit();
    const int stage = tile % S::kStages, end = min(S::kRows, count - tile * S::kRows);
    const uint32_t rows = shared_address(shared.rows[stage]) +
                          ((lane >> 3 & 1) * 8 + (lane & 7)) * S::kPitch + (lane >> 4) * 16;
    const float* w = shared.weights[stage][own];
    if (weights) {
#pragma unroll 1
      for (int row = 0; row < end; row += 16)
        add_sixteen<D, true>(sums, rows + row * S::kPitch, strip, w + row);
    } else {
#pragma unroll 1
      for (int row = 0; row < end; row += 16)
        add_sixteen<D, false>(sums, rows + row * S::kPitch, strip, nullptr);
    }
  }
  launch_dependents();
  const int64_t slot = (static_cast<int64_t>(head) * a.in.weightings + which) * a.parts + part;
  leave_sums(a, sums, slot, strip);
  if (strip != 0) return;
  double total = 0;
  if (weights && a.in.total[which]) {
#pragma unroll 8
    for (int row = lane; row < count; row += 32) total += weights[row];
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(kWarp, total, distance);
  if (lane == 0) a.totals[slot] = weights ? total : count;
}

template <int D>
cudaError_t launch_gram(const GramArguments& a, cudaStream_t stream) {
  using S = GramShape<D>;
  const int together = S::kTogether < a.in.weightings ? S::kTogether : a.in.weightings;
  const dim3 grid(a.parts, a.in.heads, (a.in.weightings + together - 1) / together);
  const int shared = static_cast<int>(sizeof(GramShared<D>));
  if (const auto e =
          cudaFuncSetAttribute(gram_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared))
    return e;
  gram_kernel<D><<<grid, 2 * D * together, shared, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t launch_gram_64(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_96(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_128(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_192(const GramArguments& a, cudaStream_t stream);
cudaError_t launch_gram_256(const GramArguments& a, cudaStream_t stream);

}  // namespace oscar::cuda
