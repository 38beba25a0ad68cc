// Rows in registers. Four lanes own a row: lane t holds channels 32 m + 8 t + i, i = 0..7, of the units m = 0
// .. D/32 - 1, which are 16 consecutive bytes of a bfloat16 row, and, with its columns in another order, what
// a matrix product leaves.
#pragma once
#include "kernels/cuda/code_steps.cuh"
#include "kernels/cuda/common.cuh"

namespace oscar::cuda {

// Over the four lanes of a row.
OSCAR_DEVICE int quad_sum(int v) {
  v += __shfl_xor_sync(kWarp, v, 1);
  return v + __shfl_xor_sync(kWarp, v, 2);
}
OSCAR_DEVICE double quad_sum(double v) {
  v += __shfl_xor_sync(kWarp, v, 1);
  return v + __shfl_xor_sync(kWarp, v, 2);
}
OSCAR_DEVICE float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(kWarp, v, 1));
  return fmaxf(v, __shfl_xor_sync(kWarp, v, 2));
}
OSCAR_DEVICE float quad_min(float v) {
  v = fminf(v, __shfl_xor_sync(kWarp, v, 1));
  return fminf(v, __shfl_xor_sync(kWarp, v, 2));
}

OSCAR_DEVICE __nv_bfloat162 as_pair(unsigned bits) {
  return *reinterpret_cast<__nv_bfloat162*>(&bits);
}
OSCAR_DEVICE unsigned as_bits(__nv_bfloat162 pair) {
  return *reinterpret_cast<unsigned*>(&pair);
}
OSCAR_DEVICE float low_float(unsigned pair) {
  return __uint_as_float(pair << 16);
}
OSCAR_DEVICE float high_float(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
OSCAR_DEVICE unsigned splat(float bf16_value) {
  return __byte_perm(__float_as_uint(bf16_value), 0, 0x3232);
}

// Codes of a unit, one a byte: word k holds channels i = 4 k .. 4 k + 3.
struct UnitCodes {
  unsigned word[2];
};
// round(3 clamp((x - low) / range, 0, 1)) in few operations: the code wherever that was checked at the steps
// (write.cuh).
struct Affine {
  static constexpr unsigned kExcess = 0x4b000000u;  // of code(), in its first byte
  float slope, offset;
  OSCAR_DEVICE unsigned code(float x) const {
    return __float_as_uint(__fmaf_rn(__saturatef(__fmaf_rn(x, slope, offset)), 3.f, 8388608.f));
  }
};
// An element's code is how many of `first` are at most x - offset.
struct Steps {
  float first[3], offset;
};

// bfloat16 values, two a register: x[4 m + p] holds i = 2 p and 2 p + 1.
template <int D>
struct PackedRow {
  static constexpr int kUnits = D / 32, kPairs = D / 8;
  static constexpr bool kPacked = true;
  unsigned x[kPairs];

  OSCAR_DEVICE void unit(int m, float (&v)[8]) const {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      v[2 * p] = low_float(x[4 * m + p]);
      v[2 * p + 1] = high_float(x[4 * m + p]);
    }
  }
  OSCAR_DEVICE void set_unit(int m, const float (&v)[8]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) x[4 * m + p] = as_bits(__floats2bfloat162_rn(v[2 * p], v[2 * p + 1]));
  }
  // Of the units of the row's four lanes for which inside(m) holds; a NaN is not seen. Largest and minus
  // least are reduced as the halves of one register.
  template <class Inside>
  OSCAR_DEVICE void bounds(Inside inside, float& low, float& high) const {
    __nv_bfloat162 least = as_pair(0x7f807f80u), most = as_pair(0xff80ff80u);
#pragma unroll
    for (int m = 0; m < kUnits; ++m) {
      if (!inside(m)) continue;
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        least = __hmin2(least, as_pair(x[4 * m + p]));
        most = __hmax2(most, as_pair(x[4 * m + p]));
      }
    }
    const unsigned negative = as_bits(least) ^ 0x80008000u;
    __nv_bfloat162 both = __hmax2(as_pair(__byte_perm(as_bits(most), negative, 0x5410)),
                                  as_pair(__byte_perm(as_bits(most), negative, 0x7632)));
    both = __hmax2(both, as_pair(__shfl_xor_sync(kWarp, as_bits(both), 1)));
    both = __hmax2(both, as_pair(__shfl_xor_sync(kWarp, as_bits(both), 2)));
    high = low_float(as_bits(both));
    low = -high_float(as_bits(both));
  }
  // Whether no magnitude of this lane is below `least`, a bfloat16.
  template <class Inside>
  OSCAR_DEVICE bool magnitudes_reach(float least, Inside inside) const {
    unsigned found = 0xffffffffu;  // twice the magnitude, and a neighbour's sign
#pragma unroll
    for (int m = 0; m < kUnits; ++m) {
      if (!inside(m)) continue;
#pragma unroll
      for (int p = 0; p < 4; ++p) found = __vminu2(found, x[4 * m + p] * 2);
    }
    const unsigned limit = __float_as_uint(least) >> 15;
    return (found & 0xfffeu) >= limit && found >> 16 >= limit;
  }
  // Of this lane.
  OSCAR_DEVICE int count_above(float threshold) const {
    const __nv_bfloat162 limit = as_pair(splat(threshold));  // cut to bfloat16: no bfloat16 lies between
    __nv_bfloat162 count = as_pair(0);                       // small integers, exact
#pragma unroll
    for (int i = 0; i < kPairs; ++i) count = __hadd2(count, __hgt2(as_pair(x[i] & 0x7fff7fffu), limit));
    return static_cast<int>(__low2float(count) + __high2float(count));
  }
  OSCAR_DEVICE int count_at_most(
      unsigned pattern) const {  // of the 31 bits of a magnitude; a NaN is above infinity
    const unsigned limit = __byte_perm(pattern, 0, 0x3232) | 0x80008000u;
    unsigned count = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) count += (limit - (x[i] & 0x7fff7fffu)) >> 15 & 0x00010001u;
    return static_cast<int>((count & 0xffffu) + (count >> 16));
  }
  static constexpr int kLowestBit = 16;

  OSCAR_DEVICE UnitCodes codes(int m, const Affine& affine) const {
    UnitCodes codes;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const unsigned a = x[4 * m + 2 * k], b = x[4 * m + 2 * k + 1];
      // Products and sums, not shifts: the floating-point pipes are twice as wide.
      codes.word[k] = affine.code(high_float(b)) * 0x1000000u + affine.code(low_float(b)) * 0x10000u +
                      affine.code(high_float(a)) * 0x100u + affine.code(low_float(a)) - Affine::kExcess;
    }
    return codes;
  }

  // `steps` without an offset, and bfloat16.
  OSCAR_DEVICE UnitCodes codes(int m, const Steps& steps) const {
    const __nv_bfloat162 first = as_pair(splat(steps.first[0])), second = as_pair(splat(steps.first[1])),
                         third = as_pair(splat(steps.first[2]));
    unsigned pair[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const __nv_bfloat162 v = as_pair(x[4 * m + p]);
      const unsigned one = __hge2_mask(v, first), two = __hge2_mask(v, second), three = __hge2_mask(v, third);
      pair[p] = (two & 0x00020002u) | ((one ^ two ^ three) & 0x00010001u);
    }
    return {__byte_perm(pair[0], pair[1], 0x6420), __byte_perm(pair[2], pair[3], 0x6420)};
  }
};

template <int D>
struct FloatRow {
  static constexpr int kUnits = D / 32;
  static constexpr bool kPacked = false;
  float x[D / 4];  // x[8 m + i]

  OSCAR_DEVICE void unit(int m, float (&v)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = x[8 * m + i];
  }
  OSCAR_DEVICE void set_unit(int m, const float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[8 * m + i] = v[i];
  }
  template <class Inside>
  OSCAR_DEVICE void bounds(Inside inside, float& low, float& high) const {
    low = INFINITY;
    high = -INFINITY;
#pragma unroll
    for (int m = 0; m < kUnits; ++m) {
      if (!inside(m)) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        low = fminf(low, x[8 * m + i]);
        high = fmaxf(high, x[8 * m + i]);
      }
    }
    low = quad_min(low);
    high = quad_max(high);
  }
  OSCAR_DEVICE int count_above(float threshold) const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < D / 4; ++i) count += fabsf(x[i]) > threshold;
    return count;
  }
  OSCAR_DEVICE int count_at_most(unsigned pattern) const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < D / 4; ++i) count += (__float_as_uint(x[i]) & 0x7fffffffu) <= pattern;
    return count;
  }
  static constexpr int kLowestBit = 0;

  OSCAR_DEVICE UnitCodes codes(int m, const Steps& steps) const;
};

template <int D, class From, class To>
OSCAR_DEVICE void convert_units(const From& from, To& to) {
#pragma unroll
  for (int m = 0; m < D / 32; ++m) {
    float v[8];
    from.unit(m, v);
    to.set_unit(m, v);
  }
}
template <int D>
OSCAR_DEVICE void convert(const PackedRow<D>& from, PackedRow<D>& to) {
  to = from;
}
template <int D>
OSCAR_DEVICE void convert(const FloatRow<D>& from, FloatRow<D>& to) {
  to = from;
}
template <int D>
OSCAR_DEVICE void convert(const PackedRow<D>& from, FloatRow<D>& to) {
  convert_units<D>(from, to);
}
template <int D>
OSCAR_DEVICE void convert(const FloatRow<D>& from, PackedRow<D>& to) {
  convert_units<D>(from, to);
}

// Any row, with an offset.
OSCAR_DEVICE UnitCodes codes_of(const float (&v)[8], const Steps& steps) {
  UnitCodes codes;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    unsigned word = 0;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      const float x = __fsub_rn(v[4 * k + i], steps.offset);
      word = word * 256 + (x >= steps.first[0]) + (x >= steps.first[1]) + (x >= steps.first[2]);
    }
    codes.word[k] = word;
  }
  return codes;
}
template <int D>
OSCAR_DEVICE UnitCodes FloatRow<D>::codes(int m, const Steps& steps) const {
  float v[8];
  unit(m, v);
  return codes_of(v, steps);
}

// The rule word for word, for groups that steps are not exact for. Not inlined: rare, and 32 divisions long.
static __device__ __noinline__ unsigned code_by_division(float x, float tau, float scale, float zero) {
  x = x < -tau ? -tau : x > tau ? tau : x;
  float level = __fadd_rn(__fadd_rn(__fdiv_rn(x, scale), zero), 0.5f);
  level = level > 0.0f ? level : 0.0f;
  level = level < 3.0f ? level : 3.0f;
  return static_cast<unsigned>(level);
}
OSCAR_DEVICE UnitCodes codes_by_division(const float (&v)[8], float tau, float scale, float zero) {
  UnitCodes codes;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    codes.word[k] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes.word[k] |= code_by_division(v[4 * k + i], tau, scale, zero) << (8 * i);
  }
  return codes;
}

}  // namespace oscar::cuda
