// The clip threshold of a row in registers: an order statistic of its magnitudes, or the engine's bisection.
#pragma once
#include "kernels/cuda/write_rows.cuh"

namespace oscar::cuda {

// Magnitudes of bfloat16 are ordered as integers, NaN above infinity, so two columns are sorted at once, each
// magnitude above a bit that does not matter.
OSCAR_DEVICE void exchange(unsigned& a, unsigned& b) {
  const unsigned most = __vmaxu2(a, b);
  b = __vminu2(a, b);
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

// A bitonic sort in which the elements of the set `kTop` are above all others and not stored.
constexpr unsigned top_after(int size, int step, unsigned top) {
  for (int i = 0; i < size; ++i) {
    const unsigned one = 1u << i, other = one << step;
    if ((i & step) == 0 && (top & other) && !(top & one)) top = (top & ~other) | one;
  }
  return top;
}
template <int N, int Step = N / 2, unsigned kTop = 0>
OSCAR_DEVICE void sort_bitonic(unsigned (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if ((i & Step) != 0 || (kTop >> i & 1)) continue;
    if (kTop >> (i + Step) & 1) {
      v[i + Step] = v[i];
    } else {
      exchange(v[i], v[i + Step]);
    }
  }
  if constexpr (Step > 1) sort_bitonic<N, Step / 2, top_after(N, Step, kTop)>(v);
}
// The N largest of two descending lists, in both columns: in no order, then sorted into a.
template <int N>
OSCAR_DEVICE void keep_largest(unsigned (&a)[N], const unsigned (&b)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = __vmaxu2(a[i], b[N - 1 - i]);
}
template <int N>
OSCAR_DEVICE void merge_largest(unsigned (&a)[N], const unsigned (&b)[N]) {
  constexpr int kSize = N <= 1 ? 1 : N <= 2 ? 2 : N <= 4 ? 4 : N <= 8 ? 8 : 16;
  constexpr unsigned kAll = (1u << kSize) - 1, kTop = kAll & ~((1u << N) - 1);
  keep_largest(a, b);
  unsigned v[kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) v[i] = i < N ? a[i] : 0;
  if constexpr (kSize > 1) sort_bitonic<kSize, kSize / 2, kTop>(v);
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = v[kSize - N + i];
}

// The rank-th largest magnitude of a row, rank < N from 0. Where it is known to be the last of the N, the
// last merge need not sort.
template <int N, bool kLast, int D>
OSCAR_DEVICE float largest_magnitude(const PackedRow<D>& row, int rank) {
  constexpr int kPairs = D / 8,
                kSorted = N <= 4   ? 4
                          : N <= 8 ? 8
                                   : 16,
                kLists = (kPairs + kSorted - 1) / kSorted;
  unsigned a[N];
#pragma unroll
  for (int list = 0; list < kLists; ++list) {
    unsigned sorted[kSorted], b[N];
#pragma unroll
    for (int i = 0; i < kSorted; ++i) {  // twice the magnitude, and a neighbour's sign
      sorted[i] = kSorted * list + i < kPairs ? row.x[kSorted * list + i] * 2 : 0;
    }
    sort_descending(sorted);
#pragma unroll
    for (int i = 0; i < N; ++i) (list == 0 ? a : b)[i] = sorted[i];
    if (list > 0) merge_largest(a, b);
  }
#pragma unroll
  for (int level = 0; level < 3; ++level) {  // two lanes, four, then the two columns
    unsigned b[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      b[i] = level < 2 ? __shfl_xor_sync(kWarp, a[i], 1 << level) : __byte_perm(a[i], 0, 0x1032);
    }
    if (kLast && level == 2) {
      keep_largest(a, b);
    } else {
      merge_largest(a, b);
    }
  }
  unsigned found = a[0];
#pragma unroll
  for (int i = 1; i < N; ++i) found = kLast ? __vminu2(found, a[i]) : i == rank ? a[i] : found;
  return __uint_as_float(found << 15 & 0x7fff0000u);
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

// The rank from the top that a kernel has a network of its own for: of ratio 0.96, or of 0.92.
constexpr int usual_rank(ClipClass kind, int dim) {
  if (kind == ClipClass::few) return dim == 64 ? 2 : dim == 96 ? 3 : dim == 128 ? 5 : 7;
  return dim == 192 ? 15 : 10;
}

// index: int2::clip_index, -1: infinity, no clip.
template <ClipClass kClass, class Row>
OSCAR_DEVICE float clip_threshold(const Row& row, int dim, int index, bool bisect) {
  if (index < 0) return INFINITY;
  constexpr int kUsual = usual_rank(kClass, Row::kUnits * 32);
  if constexpr (kClass != ClipClass::any) {
    constexpr int kMost = kClass == ClipClass::few ? 8 : 16;
    const int rank = dim - 1 - index;
    return rank == kUsual ? largest_magnitude<kUsual + 1, true>(row, rank)
                          : largest_magnitude<kMost, false>(row, rank);
  }
  return bisect ? bisect_magnitude(row, dim, index) : select_magnitude(row, index);
}

}  // namespace oscar::cuda
