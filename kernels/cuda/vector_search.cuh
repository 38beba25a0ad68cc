// The nearest of 256 words of a group, exactly as kernels/codebook.h defines it, for sixteen rows of a warp.
//
// With words s n, n of int8, |x - s n|^2 is least where x.n - s |n|^2 / 2 - (any number of the row) is largest.
// The tensor core finds these scores in float16, which holds n, |n|^2 / 8 in two parts, and x if that is
// bfloat16: the row is scaled so that nothing overflows, and the number is |x|^2 / 2 s, so that the largest
// scores are small and finely resolved. A lane keeps the largest of every four of its words, and what reaches
// the best score less a bound on all errors is a hit, mostly the only one. Its four words are compared in
// float32. Close calls of that, one row in thousands, are decided by the warp in double arithmetic over all
// 256 words.
#pragma once
#include "kernels/cuda/write_rows.cuh"
#include "kernels/vector_pages.h"

namespace oscar::cuda {

// Of the difference of two scores: their roundings and that of the limit, of the best score; what the tensor
// core cuts off sums whose terms are below 2^14 (a twentieth of it was seen), and subnormals; what x loses in
// float16, of 127 |x|_1.
inline constexpr float kScoreRounding = 1.75f * 0x1p-10f, kScoreSums = 0x1p-4f, kScoreRows = 1.1f * 0x1p-10f;
inline constexpr float kDistanceError = 0x1p-18f;  // of a float32 distance between floats; 2^-21 would do

// d = a b + c in float16: a (16, 8) by rows, b (8, 8) by columns; a0 = row g, k 2t, 2t+1; a1 = row g + 8; b0 =
// column g; c, d: row g, columns 2t, 2t+1, and row g + 8.
OSCAR_DEVICE void product_half_8(unsigned (&d)[2], unsigned a0, unsigned a1, unsigned b0,
                                 const unsigned (&c)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3},{%4},{%5,%6};\n"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a0), "r"(a1), "r"(b0), "r"(c[0]), "r"(c[1]));
}
// The same with k = 16: a2, a3, b1 at k + 8.
OSCAR_DEVICE void product_half_16(unsigned (&d)[2], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                  unsigned b0, unsigned b1, const unsigned (&c)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3,%4,%5},{%6,%7},{%8,%9};\n"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]));
}

OSCAR_DEVICE __half2 as_halves(unsigned bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
OSCAR_DEVICE unsigned as_bits(__half2 pair) {
  return *reinterpret_cast<unsigned*>(&pair);
}

// A head's codebook in shared memory. Word c = 128 e + 16 chunk + 4 t + tile is column 2 t + e of that tile of
// that chunk.
template <int D, int kSize>
struct SearchTables {
  static constexpr int kGroups = D / kSize, kPairs = kSize / 2, kSlots = kPairs + 1;
  // Float16 pairs [group][e][chunk][t][slot][tile]; slots: n by pairs, then |n|^2 / 8 as its float16 and the
  // rest. 64 bytes between the two e, so that their columns are in other banks.
  static constexpr int kStride = kVectorWords * kSlots + 32;
  uint32_t words[kGroups * kStride];
  float scales[kGroups], inverses[kGroups];  // inverse: 1 / 2 s

  static OSCAR_DEVICE int offset(int group, int word) {  // of a word whose tile is 0
    return group * kStride + word * kSlots + (word >> 7) * 16;
  }
  OSCAR_DEVICE void load(const CodebookView& book, int head) {
#pragma unroll 4
    for (int n = threadIdx.x; n < kGroups * kVectorWords; n += blockDim.x) {
      const int c = n % kVectorWords, group = n / kVectorWords;
      const auto* from = reinterpret_cast<const char4*>(
          book.words + (static_cast<int64_t>(head) * kVectorWords + c) * D + group * kSize);
      uint32_t* to = words + offset(group, c & ~3) + (c & 3);
      int squares = 0;
#pragma unroll
      for (int i = 0; i < kSize / 4; ++i) {
        const char4 n4 = from[i];
        squares += n4.x * n4.x + n4.y * n4.y + n4.z * n4.z + n4.w * n4.w;
        to[8 * i] = as_bits(__floats2half2_rn(n4.x, n4.y));
        to[8 * i + 4] = as_bits(__floats2half2_rn(n4.z, n4.w));
      }
      const float square = 0.125f * squares, most = __half2float(__float2half_rn(square));
      to[4 * kPairs] = as_bits(__floats2half2_rn(most, square - most));
    }
    for (int group = threadIdx.x; group < kGroups; group += blockDim.x) {
      scales[group] = book.scales[head * kGroups + group];
      inverses[group] = 0.5f / scales[group];
    }
  }
};

// Rows g and g + 8 as the products want them, times a power of two.
template <bool kExact, int kSize>
struct ScaledRows {
  unsigned a[2], b[2], c[2];  // b: k from 8 on
  unsigned reach;             // both rows: what scores may be wrong by, but for their own roundings
  bool regular[2];

  OSCAR_DEVICE ScaledRows(const float (&x)[2][kSize], float scale, float inverse, int t) {
    float loss[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = fabsf(x[r][0]), squares = x[r][0] * x[r][0], left = x[r][0], right = x[r][1];
#pragma unroll
      for (int i = 1; i < kSize; ++i) {
        sum += fabsf(x[r][i]);
        squares = fmaf(x[r][i], x[r][i], squares);
      }
#pragma unroll
      for (int i = 1; i < kSize / 2; ++i) {
        left = t == i ? x[r][2 * i] : left;
        right = t == i ? x[r][2 * i + 1] : right;
      }
      // A bound of all terms, and the power of two that brings it below 2^14.
      const float most = fmaf(127.f, sum, scale * (kSize * 127 * 127 / 2));
      const float power = __uint_as_float((267u << 23) - (__float_as_uint(most) & 0x7f800000u));
      regular[r] = most >= 0x1p-110f && most < INFINITY;
      const float step = -4 * scale * power;
      const unsigned steps = as_bits(__floats2half2_rn(step, step));
      const float rest = step - __low2float(as_halves(steps));
      const unsigned rests = as_bits(__floats2half2_rn(rest, rest));
      a[r] = as_bits(__floats2half2_rn(left * power, right * power));
      if constexpr (kSize == 4) {
        a[r] = t < 2 ? a[r] : t == 2 ? steps : rests;
      } else {
        b[r] = t == 0 ? steps : t == 1 ? rests : 0;
      }
      const float origin = fminf(squares * inverse, most) * -power;
      c[r] = as_bits(__floats2half2_rn(origin, origin));
      loss[r] = kExact ? kScoreSums : fmaf(127 * kScoreRows * sum, power, kScoreSums);
    }
    reach = as_bits(__floats2half2_rn(loss[0], loss[1]));
  }
};

// The scores' largest of each chunk, for rows g and g + 8 and this lane's two columns of a tile.
template <bool kExact, int D, int kSize>
OSCAR_DEVICE void chunk_scores(const SearchTables<D, kSize>& tables, int group,
                               const ScaledRows<kExact, kSize>& rows, int lane, __half2 (&most)[2][8]) {
  constexpr int kSlots = kSize / 2 + 1;
  const int g = lane / 4, t = lane & 3;
  const uint32_t* from = tables.words + tables.offset(group, 128 * (g & 1) + 4 * (g >> 1));
#pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const auto* slots = reinterpret_cast<const uint4*>(from + 16 * chunk * kSlots);
    const uint4 first = slots[kSize == 4 ? min(t, 2) : t];
    uint4 second = first;
    if constexpr (kSize == 8) second = slots[4];
    const unsigned word[4] = {first.x, first.y, first.z, first.w},
                   square[4] = {second.x, second.y, second.z, second.w};
    unsigned d[4][2];
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      if constexpr (kSize == 4) {
        product_half_8(d[tile], rows.a[0], rows.a[1], word[tile], rows.c);
      } else {
        product_half_16(d[tile], rows.a[0], rows.a[1], rows.b[0], rows.b[1], word[tile], square[tile],
                        rows.c);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r][chunk] = __hmax2(__hmax2(__hmax2(as_halves(d[0][r]), as_halves(d[1][r])), as_halves(d[2][r])),
                               as_halves(d[3][r]));
    }
  }
}

// Hits of rows g and g + 8: bit 8 e + chunk of this lane's t.
OSCAR_DEVICE void find_hits(const __half2 (&most)[2][8], unsigned reach, unsigned (&hits)[2]) {
  unsigned best[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    __half2 all = most[r][0];
#pragma unroll
    for (int chunk = 1; chunk < 8; ++chunk) all = __hmax2(all, most[r][chunk]);
    best[r] = as_bits(all);
  }
  __half2 both = __hmax2(as_halves(__byte_perm(best[0], best[1], 0x5410)),
                         as_halves(__byte_perm(best[0], best[1], 0x7632)));  // row g, row g + 8
  both = __hmax2(both, as_halves(__shfl_xor_sync(kWarp, as_bits(both), 1)));
  both = __hmax2(both, as_halves(__shfl_xor_sync(kWarp, as_bits(both), 2)));
  const __half2 limit =
      __hsub2(both, __hfma2(__habs2(both), __float2half2_rn(kScoreRounding), as_halves(reach)));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const __half2 least = as_halves(__byte_perm(as_bits(limit), 0, r == 0 ? 0x1010 : 0x3232));
    __half2 sum = __float2half2_rn(1024);  // so that the last bits are those of the integer
#pragma unroll
    for (int chunk = 0; chunk < 8; ++chunk)
      sum = __hfma2(__hge2(most[r][chunk], least), __float2half2_rn(1 << chunk), sum);
    hits[r] = __byte_perm(as_bits(sum), 0, 0x4420);
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
    const uint32_t* pairs = tables.words + tables.offset(group, word & ~3) + (word & 3);
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      const float2 n = __half22float2(as_halves(pairs[4 * i]));
      const double a = static_cast<double>(x[2 * i]) - static_cast<double>(__fmul_rn(n.x, scale));
      const double b = static_cast<double>(x[2 * i + 1]) - static_cast<double>(__fmul_rn(n.y, scale));
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
template <bool kExact, int D, int kSize>
OSCAR_DEVICE void nearest_words(const SearchTables<D, kSize>& tables, int group, const float (&x)[2][kSize],
                                int lane, int (&winner)[2]) {
  const int t = lane & 3;
  const float scale = tables.scales[group];
  const ScaledRows<kExact, kSize> rows(x, scale, tables.inverses[group], t);
  unsigned hits[2];
  {
    __half2 most[2][8];
    chunk_scores(tables, group, rows, lane, most);
    find_hits(most, rows.reach, hits);
  }
  float least[2] = {INFINITY, INFINITY}, second[2] = {INFINITY, INFINITY};
  int word[2] = {0, 0};
  // The first hit of each row, lane t for the word of tile t; then what is left.
#pragma unroll 1
  do {
    unsigned mine[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) mine[r] = hits[r] != 0 ? 16 * (__ffs(hits[r]) - 1) + 4 * t : 0xffffu;
    unsigned first = mine[0] | mine[1] << 16;
    first = __vminu2(first, __shfl_xor_sync(kWarp, first, 1));
    first = __vminu2(first, __shfl_xor_sync(kWarp, first, 2));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned at = r == 0 ? first & 0xffffu : first >> 16;
      if (mine[r] == at) hits[r] &= hits[r] - 1;
      const uint32_t* pairs = tables.words + tables.offset(group, at & 0xffu) + t;
      float distance = 0;
#pragma unroll
      for (int i = 0; i < kSize / 2; ++i) {
        const float2 n = __half22float2(as_halves(pairs[4 * i]));
        const float a = x[r][2 * i] - __fmul_rn(n.x, scale), b = x[r][2 * i + 1] - __fmul_rn(n.y, scale);
        distance = fmaf(b, b, fmaf(a, a, distance));
      }
      if (at == 0xffffu) distance = INFINITY;
      second[r] = fminf(second[r], fmaxf(least[r], distance));
      if (distance < least[r]) {
        least[r] = distance;
        word[r] = at + t;
      }
    }
  } while (__any_sync(kWarp, (hits[0] | hits[1]) != 0));
  // How many words are as near as the nearest, and the sum of their numbers: of both rows in one register.
  unsigned near[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float most = quad_min(least[r]), reach = most + kDistanceError * most;
    near[r] = (least[r] <= reach ? 0x100u + word[r] : 0u) + (second[r] <= reach ? 0x100u : 0u);
  }
  unsigned sum = near[0] | near[1] << 16;
  sum += __shfl_xor_sync(kWarp, sum, 1);
  sum += __shfl_xor_sync(kWarp, sum, 2);
  bool close[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    winner[r] = sum >> (16 * r) & 0xffu;
    close[r] = (sum >> (16 * r) & 0xff00u) != 0x100u || !rows.regular[r] || !(scale > 0);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    unsigned left = __ballot_sync(kWarp, close[r] && t == 0);
    while (left != 0) {
      const int from = __ffs(left) - 1;
      left &= left - 1;
      float row[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) row[i] = __shfl_sync(kWarp, x[r][i], from);
      const int exact = nearest_exactly(tables, group, row, lane);
      if ((lane & ~3) == from) winner[r] = exact;
    }
  }
}

}  // namespace oscar::cuda
