// The clip threshold of a row in registers: an order statistic of its magnitudes, or the engine's bisection.
#pragma once
#include "kernels/cuda/write_rows.cuh"

namespace oscar::cuda {

// Magnitudes of bfloat16 are ordered as 15-bit integers, NaN above infinity, so two columns are sorted at
// once.
OSCAR_DEVICE void exchange(unsigned& a, unsigned& b) {
  const unsigned most = __vmaxs2(a, b);
  b = __vmins2(a, b);
  a = most;
}
// Batcher's odd-even merge network, largest first. Recursion by template, so that every index is a constant.
template <int N, int Size = 1, int Step = 1>
OSCAR_DEVICE void sort_descending(unsigned (&v)[N]) {
#pragma unroll
  for (int i = Step % Size; i + Step < N; ++i) {
    if ((i - Step % Size) / Step % 2 == 0 && i / (2 * Size) == (i + Step) / (2 * Size))
      exchange(v[i], v[i + Step]);
  }
  if constexpr (Step > 1) {
    sort_descending<N, Size, Step / 2>(v);
  } else if constexpr (2 * Size < N) {
    sort_descending<N, 2 * Size, 2 * Size>(v);
  }
}
template <int N, int Step = N / 2>
OSCAR_DEVICE void sort_bitonic(unsigned (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if ((i & Step) == 0) exchange(v[i], v[i + Step]);
  }
  if constexpr (Step > 1) sort_bitonic<N, Step / 2>(v);
}
// a becomes the N largest of two descending lists, in both columns.
template <int N>
OSCAR_DEVICE void merge_largest(unsigned (&a)[N], const unsigned (&b)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = __vmaxs2(a[i], b[N - 1 - i]);
  sort_bitonic(a);
}

// The rank-th largest magnitude of a row, rank < N from 0. Where kRank says which, the last merge does not
// sort the others.
template <int N, int kRank = -1, int D>
OSCAR_DEVICE float largest_magnitude(const PackedRow<D>& row, int rank) {
  constexpr int kPairs = D / 8, kLists = (kPairs + N - 1) / N;
  unsigned a[N];
#pragma unroll
  for (int list = 0; list < kLists; ++list) {
    unsigned b[N];
#pragma unroll
    for (int i = 0; i < N; ++i) b[i] = N * list + i < kPairs ? row.x[N * list + i] & 0x7fff7fffu : 0;
    sort_descending(b);
    if (list == 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) a[i] = b[i];
    } else {
      merge_largest(a, b);
    }
  }
#pragma unroll
  for (int level = 0; level < 3; ++level) {  // two lanes, four, then the two columns
    unsigned b[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      b[i] = level < 2 ? __shfl_xor_sync(kWarp, a[i], 1 << level) : __byte_perm(a[i], 0, 0x1032);
    }
    merge_largest(a, b);
  }
  if constexpr (kRank >= 0) return low_float(a[kRank]);
  unsigned found = a[0];
#pragma unroll
  for (int i = 1; i < N; ++i) found = i == rank ? a[i] : found;
  return low_float(found);
}

// The index-th smallest magnitude, from 0: one bit of it a step.
template <class Row>
OSCAR_DEVICE float select_magnitude(const Row& row, int index) {
  unsigned answer = 0;
#pragma unroll 1
  for (int bit = 30; bit >= Row::kLowestBit; --bit) {
    if (quad_sum(row.count_at_most(answer | ((1u << bit) - 1))) <= index) answer |= 1u << bit;
  }
  return __uint_as_float(answer);
}

template <class Row>
OSCAR_DEVICE float bisect_magnitude(const Row& row, int dim, int index) {
  float least, most, low = 0;
  row.bounds([](int) { return true; }, least, most);
  float high = fmaxf(0.f, fmaxf(-least, most));
#pragma unroll 1
  for (int step = 31 - __clz(dim); step > 0; --step) {
    const float middle = __fmul_rn(__fadd_rn(low, high), 0.5f);
    if (quad_sum(row.count_above(middle)) > dim - index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return high;
}

// What a kernel is built for: no clip or a rank below 8 from the top, below 16, or anything, Lloyd-Max too.
// The networks take registers that the rest would rather have for more rows in flight.
enum class ClipClass { few, some, any };
inline ClipClass clip_class(int dim, int index, bool bisect) {
  const int rank = index < 0 ? 0 : dim - 1 - index;
  return index >= 0 && bisect ? ClipClass::any
         : rank < 8           ? ClipClass::few
         : rank < 16          ? ClipClass::some
                              : ClipClass::any;
}

// index: int2::clip_index, -1: infinity, no clip.
template <ClipClass kClass, class Row>
OSCAR_DEVICE float clip_threshold(const Row& row, int dim, int index, bool bisect) {
  if (index < 0) return INFINITY;
  if constexpr (kClass == ClipClass::few) {
    constexpr int kUsual = Row::kPairs * 8 == 128 ? 5 : Row::kPairs * 8 == 64 ? 2 : 3;  // of ratio 0.96
    const int rank = dim - 1 - index;
    return rank == kUsual ? largest_magnitude<8, kUsual>(row, rank) : largest_magnitude<8>(row, rank);
  }
  if constexpr (kClass == ClipClass::some) {
    return dim - 1 - index < 8 ? largest_magnitude<8>(row, dim - 1 - index)
                               : largest_magnitude<16>(row, dim - 1 - index);
  }
  return bisect ? bisect_magnitude(row, dim, index) : select_magnitude(row, index);
}

}  // namespace oscar::cuda
