// The nearest of 256 words of a group, exactly as kernels/codebook.h defines it, for sixteen rows of a warp.
//
// With words s n, n of int8, |x - s n|^2 is least where x.n - s |n|^2 / 2 is largest. The tensor core finds
// these scores (n is exact in bfloat16, x is one limb or three), a lane keeps the largest of every eight of
// its words, and what reaches the best score less a bound on all errors is a hit. One hit: its eight words
// are compared in float32. Close calls of either step, one row in a thousand, are decided by the warp in
// double arithmetic over all 256 words.
#pragma once
#include "kernels/cuda/write_rows.cuh"
#include "kernels/vector_pages.h"

namespace oscar::cuda {

inline constexpr float kScoreError =
    0x1p-16f;  // of |x|_1 127 + s size 127^2 / 2; two limbs leave 2^-18, twice
inline constexpr float kDistanceError = 0x1p-18f;  // of a float32 distance between floats; 2^-21 would do

// d += a b: a (16, 8) by rows, b (8, 8) by columns; a0 = row g, k 2t, 2t+1; a1 = row g + 8; b0 = column g.
OSCAR_DEVICE void product_bf16_8(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// A head's codebook in shared memory. Word c = 32 chunk + 8 tile + column.
template <int D, int kSize>
struct SearchTables {
  static constexpr int kGroups = D / kSize, kPairs = kSize / 2;
  uint32_t words[kGroups * 8 * 8 * kPairs * 4];  // bfloat16 pairs [group][chunk][column][pair][tile]
  float halves[kGroups *
               kVectorWords];  // -s |n|^2 / 2, [group][chunk][tile / 2][t][tile % 2][2 columns 2t, 2t + 1]
  float scales[kGroups];

  OSCAR_DEVICE uint32_t pair(int group, int word, int i) const {
    return words[(((group * 8 + word / 32) * 8 + word % 8) * kPairs + i) * 4 + word / 8 % 4];
  }
  OSCAR_DEVICE void load(const CodebookView& book, int head) {
    for (int n = threadIdx.x; n < kGroups * kVectorWords; n += blockDim.x) {
      const int c = n % kVectorWords, group = n / kVectorWords;
      const int8_t* word = book.words + (static_cast<int64_t>(head) * kVectorWords + c) * D + group * kSize;
      const float scale = book.scales[head * kGroups + group];
      int squares = 0;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int x = word[2 * i], y = word[2 * i + 1];
        squares += x * x + y * y;
        words[(((group * 8 + c / 32) * 8 + c % 8) * kPairs + i) * 4 + c / 8 % 4] =
            as_bits(__floats2bfloat162_rn(static_cast<float>(x), static_cast<float>(y)));
      }
      const int tile = c / 8, column = c % 8;
      halves[((group * 16 + tile / 2) * 4 + column / 2) * 4 + tile % 2 * 2 + column % 2] =
          -0.5f * scale * squares;
      if (c == 0) scales[group] = scale;
    }
  }
};

// The scores' largest of each chunk, for rows g and g + 8 and this lane's two columns of a tile. kLimbs: 1
// where x is bfloat16, else 3, which side by side fill the products' sums: 4 channels k = 4 limb + channel, 8
// channels two products.
template <int kLimbs, int D, int kSize>
OSCAR_DEVICE void chunk_scores(const SearchTables<D, kSize>& tables, int group, const float (&x)[2][kSize],
                               int lane, float (&most)[2][8]) {
  constexpr int kPairs = kSize / 2;
  const int g = lane / 4, t = lane & 3;
  unsigned limb[3][2];  // of channels 2 t, 2 t + 1 (size 4: modulo 4)
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float a = x[r][0], b = x[r][1];
#pragma unroll
    for (int i = 1; i < kPairs; ++i) {
      if (t % kPairs == i) {
        a = x[r][2 * i];
        b = x[r][2 * i + 1];
      }
    }
#pragma unroll
    for (int i = 0; i < kLimbs; ++i) {
      limb[i][r] = as_bits(__floats2bfloat162_rn(a, b));
      a -= low_float(limb[i][r]);
      b -= high_float(limb[i][r]);
    }
  }
  unsigned first[2], second[2];  // operands a0, a1 and a2, a3
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    first[r] = limb[0][r];
    second[r] = 0;
    if constexpr (kSize == 4 && kLimbs == 1) first[r] = t < 2 ? limb[0][r] : 0;
    if constexpr (kSize == 4 && kLimbs == 3) {
      first[r] = t < 2 ? limb[0][r] : limb[1][r];
      second[r] = t < 2 ? limb[2][r] : 0;
    }
    if constexpr (kSize == 8 && kLimbs == 3) second[r] = limb[1][r];
  }
  const auto* words = reinterpret_cast<const uint4*>(tables.words) + group * 64 * kPairs;
  const auto* halves = reinterpret_cast<const float4*>(tables.halves) + group * 64;
#pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const uint4 w = words[(chunk * 8 + g) * kPairs + t % kPairs];
    const unsigned word[4] = {w.x, w.y, w.z, w.w};
    const float4 half[2] = {halves[chunk * 8 + t], halves[chunk * 8 + 4 + t]};
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const float4 h = half[tile / 2];
      const float start[2] = {tile % 2 ? h.z : h.x, tile % 2 ? h.w : h.y};
      float d[4] = {};
      if constexpr (kLimbs == 3)
        product_bf16(d, first[0], first[1], second[0], second[1], word[tile], word[tile]);
      if constexpr (kLimbs == 1) product_bf16_8(d, first[0], first[1], word[tile]);
      if constexpr (kLimbs == 3 && kSize == 8) product_bf16_8(d, limb[2][0], limb[2][1], word[tile]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // starting the products from `start` would copy it for each
        const float best = fmaxf(d[2 * r] + start[0], d[2 * r + 1] + start[1]);
        most[r][chunk] = tile == 0 ? best : fmaxf(most[r][chunk], best);
      }
    }
  }
}

// Word by word in double arithmetic, all lanes for one row: what kernels/codebook.h says.
template <int D, int kSize>
OSCAR_DEVICE int nearest_exactly(const SearchTables<D, kSize>& tables, int group, const float (&x)[kSize],
                                 int lane) {
  const float scale = tables.scales[group];
  double least = INFINITY;
  int winner = 0;
#pragma unroll 1
  for (int word = lane; word < kVectorWords; word += 32) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      const unsigned n = tables.pair(group, word, i);
      const double a = static_cast<double>(x[2 * i]) - static_cast<double>(__fmul_rn(low_float(n), scale));
      const double b =
          static_cast<double>(x[2 * i + 1]) - static_cast<double>(__fmul_rn(high_float(n), scale));
      sum = __dadd_rn(__dadd_rn(sum, __dmul_rn(a, a)), __dmul_rn(b, b));
    }
    if (sum < least) {
      least = sum;
      winner = word;
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const double other = __shfl_xor_sync(kWarp, least, distance);
    const int word = __shfl_xor_sync(kWarp, winner, distance);
    if (other < least || (other == least && word < winner)) {
      least = other;
      winner = word;
    }
  }
  return winner;
}

// The words of `group` nearest to rows g and g + 8, known to all four lanes of a row.
template <int kLimbs, int D, int kSize>
OSCAR_DEVICE void nearest_words(const SearchTables<D, kSize>& tables, int group, const float (&x)[2][kSize],
                                int lane, int (&winner)[2]) {
  const int t = lane & 3;
  const float scale = tables.scales[group];
  float most[2][8];
  chunk_scores<kLimbs>(tables, group, x, lane, most);
  bool close[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float best = most[r][0], sum = 0;
#pragma unroll
    for (int chunk = 1; chunk < 8; ++chunk) best = fmaxf(best, most[r][chunk]);
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += fabsf(x[r][i]);
    const float limit = quad_max(best) - kScoreError * (127 * sum + scale * (kSize * 127 * 127 / 2));
    unsigned hits = 0;
#pragma unroll
    for (int chunk = 0; chunk < 8; ++chunk) hits |= (most[r][chunk] >= limit ? 1u : 0u) << chunk;
    hits <<= 8 * t;
    hits |= __shfl_xor_sync(kWarp, hits, 1);
    hits |= __shfl_xor_sync(kWarp, hits, 2);
    // Words 32 chunk + 8 tile + 2 t', + 1: lane t takes tile t.
    const int hit = (__ffs(hits) - 1) & 31, first = 32 * (hit % 8) + 8 * t + 2 * (hit / 8);
    float distance[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      distance[e] = 0;
#pragma unroll
      for (int i = 0; i < kSize / 2; ++i) {
        const unsigned n = tables.pair(group, first + e, i);
        const float a = x[r][2 * i] - __fmul_rn(low_float(n), scale),
                    b = x[r][2 * i + 1] - __fmul_rn(high_float(n), scale);
        distance[e] = fmaf(b, b, fmaf(a, a, distance[e]));
      }
    }
    const float least = quad_min(fminf(distance[0], distance[1])), reach = least + kDistanceError * least;
    unsigned near = (distance[0] <= reach ? 1u : 0u) | (distance[1] <= reach ? 2u : 0u);
    near <<= 2 * t;
    near |= __shfl_xor_sync(kWarp, near, 1);
    near |= __shfl_xor_sync(kWarp, near, 2);
    const int at = (__ffs(near) - 1) & 7;
    winner[r] = 32 * (hit % 8) + 8 * (at / 2) + 2 * (hit / 8) + at % 2;
    close[r] = __popc(hits) != 1 || __popc(near) != 1 || !(scale > 0);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    unsigned rows = __ballot_sync(kWarp, close[r] && t == 0);
    while (rows != 0) {
      const int from = __ffs(rows) - 1;
      rows &= rows - 1;
      float row[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) row[i] = __shfl_sync(kWarp, x[r][i], from);
      const int word = nearest_exactly(tables, group, row, lane);
      if ((lane & ~3) == from) winner[r] = word;
    }
  }
}

}  // namespace oscar::cuda
