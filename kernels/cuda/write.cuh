// From a row in registers to its codes in the cache: the part that every source of rows shares.
#pragma once
#include "kernels/cuda/write_clip.cuh"
#include "kernels/cuda/write_store.cuh"

namespace oscar::cuda {

enum class WriteLayout { sglang, native_keys, native_values };

struct WriteArguments {
  const void* rows;
  const int64_t* slots;
  const uint16_t* rotation;
  const float* mean;
  uint8_t* codes;  // sglang
  void* scale_zero;
  uint8_t* pages;  // native: first block of this side
  int64_t page_bytes, head_bytes;
  int tokens, kv_heads, groups, clip_index;
  int head_shift;         // log2 kv_heads, or -1
  float step, threshold;  // Lloyd-Max
  WriteLayout layout;
  bool f32, bisect, bf16_scales, rotation_per_head;
  bool head_major;  // a warp's rows are tokens of one head (blockIdx.y), not heads of one token
};

// One kernel a family of sources: rows that are bfloat16 when they are coded, or float32; as they come, or
// rotated.
cudaError_t launch_write_few(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_some(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_any(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_float(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_rotated_few(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_rotated_some(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_rotated_any(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_rotated_float(int dim, const WriteArguments& a, cudaStream_t stream);

// The NaN of an x86 processor, so that rows with infinities have the reference's bytes.
OSCAR_DEVICE float same_nan(float x) {
  return isnan(x) ? __uint_as_float(0xffc00000u) : x;
}

// Of row `index` = token kv_heads + head.
OSCAR_DEVICE unsigned token_of(const WriteArguments& a, unsigned index) {
  return a.head_shift >= 0 ? index >> a.head_shift : index / static_cast<unsigned>(a.kv_heads);
}

OSCAR_DEVICE RowPlace place_row(const WriteArguments& a, int token, int head, bool valid) {
  const int64_t slot = valid ? a.slots[token] : -1;
  RowPlace at{slot >= 0, static_cast<int>(slot & (int2::kPageTokens - 1)), slot * a.kv_heads + head, nullptr};
  if (a.layout != WriteLayout::sglang) {
    at.block = a.pages + (slot >> 6) * a.page_bytes + head * a.head_bytes;
    static_assert(int2::kPageTokens == 64);
  }
  return at;
}

template <int D>
OSCAR_DEVICE void store_levels(const WriteArguments& a, const RowPlace& at, int t, int group, float scale,
                               float zero) {
  if (!at.stored || t != (group & 3)) return;
  if (a.layout != WriteLayout::sglang) {
    float least = __fmul_rn(-zero, scale);
    if (!isnan(zero)) least = same_nan(least);  // 0 times infinity
    const unsigned bits = saturated_half(scale) | saturated_half(least) << 16;
    *reinterpret_cast<unsigned*>(at.block + int2::native_metadata(D, at.token, group)) = bits;
  } else if (a.bf16_scales) {
    static_cast<__nv_bfloat162*>(a.scale_zero)[at.row * a.groups + group] =
        __floats2bfloat162_rn(scale, zero);
  } else {
    static_cast<float2*>(a.scale_zero)[at.row * a.groups + group] = make_float2(scale, zero);
  }
}

// a / b where neither a, b nor the quotient is near the ends of the exponent's range.
OSCAR_DEVICE float divide_regular(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(inverse) : "f"(b));
  inverse = fmaf(fmaf(inverse, -b, 1.f), inverse, inverse);
  const float near = a * inverse;
  return fmaf(inverse, fmaf(near, -b, a), near);
}
// From a bfloat16 that is normal to the next above it; subtract it for the next below.
OSCAR_DEVICE int bf16_up(float x) {
  return (__float_as_int(x) >> 31 | 1) * 0x10000;
}
// The least bfloat16 whose code is at least k, k = 1, 2, 3, of a regular group: as first_of_code()
// (code_steps.cuh) but in float32, whose errors are so much smaller than what bfloat16 resolves that there is
// one candidate, which is tried.
OSCAR_DEVICE float first_bf16_of_code(int k, float scale, float zero) {
  const float tie = k == 1 ? 0x3p-26f : k == 2 ? 0x1p-24f : 0x1p-23f;
  const float step = __fmul_rn(__fsub_rn(__fsub_rn(k - 0.5f, zero), tie), scale);
  const float first = bf16_at_least(fmaf(fabsf(step), -0x1p-20f, step));
  const float level = __fadd_rn(__fadd_rn(divide_regular(first, scale), zero), 0.5f);
  return level >= k ? first : __int_as_float(__float_as_int(first) + bf16_up(first));
}

// Where the codes of a regular group rise; lanes 0, 1, 2 of a row know one step each, lane 3 that of lane 2.
struct RowSteps {
  float mine;
  OSCAR_DEVICE Steps all(int lane) const {  // the lanes of the row together
    const unsigned row = 15u << (lane & 28);
    return {{__shfl_sync(row, mine, 0, 4), __shfl_sync(row, mine, 1, 4), __shfl_sync(row, mine, 2, 4)}, 0};
  }
};
// Whether `affine` gives the codes of the bfloat16 elements: it never falls, so it does if it rises where the
// codes do. A step next to 0, as that in the middle of a group that is clipped on both sides, need only lie
// between the elements.
template <class Row, class Inside>
OSCAR_DEVICE bool affine_holds(const Row& row, Inside inside, const Affine& affine, const RowSteps& steps,
                               float range, int lane) {
  const unsigned k = min(lane & 3, 2);
  const float near = __uint_as_float(__float_as_uint(0x1p-18f * range) & 0xffff0000u),
              under = __int_as_float(__float_as_int(steps.mine) - bf16_up(steps.mine));
  const bool central = fabsf(steps.mine) < near;
  const unsigned above = affine.code(central ? near : steps.mine) - Affine::kExcess,
                 below = affine.code(central ? -near : under) - Affine::kExcess;
  const unsigned centrals = __ballot_sync(kWarp, central) >> (lane & 28) & 15u;
  bool holds = above == k + 1 && below == k;
  if (__any_sync(kWarp, central)) holds = holds && (row.magnitudes_reach(near, inside) || centrals == 0);
  return (__ballot_sync(kWarp, holds) >> (lane & 28) & 15u) == 15u;
}

// Channels [size group, size (group + 1)), or all; sizes are multiples of 8.
template <int D, bool kAll, class Row>
OSCAR_DEVICE void encode_group(const Row& row, const WriteArguments& a, const RowPlace& at, int lane,
                               float tau, int group, int size, UnitCodes (&codes)[D / 32]) {
  const int t = lane & 3;
  const auto inside = [&](int m) {
    const int channel = 32 * m + 8 * t - group * size;
    return kAll || (channel >= 0 && channel < size);
  };
  float low, high;
  row.bounds(inside, low, high);
  const float limit = low <= high ? tau : NAN;  // all are NaN, and the bounds infinite: as with no limit
  low = __fadd_rn(fminf(fmaxf(low, -limit), limit), 0.f);
  high = fminf(fmaxf(high, -limit), limit);
  const float range = __fsub_rn(high, low);
  const float scale = __fdiv_rn(range > 1e-8f ? range : 1e-8f, 3.f), zero = same_nan(__fdiv_rn(-low, scale));
  store_levels<D>(a, at, t, group, scale, zero);
  const bool regular = range > 1e-8f && range < 0x1p100f && fabsf(zero) < kMaxZero;
  Steps steps;
  if constexpr (Row::kPacked) {
    const RowSteps own{first_bf16_of_code(min(t, 2) + 1, scale, zero)};
    const float slope = __fdividef(1.f, range);
    const Affine affine{slope, fmaf(-low, slope, 0x1p-21f)};  // a little high, as steps are a little low
    if (affine_holds(row, inside, affine, own, range, lane) && regular) {
#pragma unroll
      for (int m = 0; m < Row::kUnits; ++m) {
        if (inside(m)) codes[m] = row.codes(m, affine);
      }
      return;
    }
    if (regular) steps = own.all(lane);
  } else if (regular) {
    steps = {{first_of_code(1, scale, zero), first_of_code(2, scale, zero), first_of_code(3, scale, zero)},
             0};
  }
  if (regular) {
#pragma unroll
    for (int m = 0; m < Row::kUnits; ++m) {
      if (inside(m)) codes[m] = row.codes(m, steps);
    }
  } else {
#pragma unroll
    for (int m = 0; m < Row::kUnits; ++m) {
      if (!inside(m)) continue;
      float v[8];
      row.unit(m, v);
      codes[m] = codes_by_division(v, tau, scale, zero);
    }
  }
}
template <int D, class Row>
OSCAR_DEVICE void encode_range(const Row& row, const WriteArguments& a, const RowPlace& at, int lane,
                               float tau, UnitCodes (&codes)[D / 32]) {
  if (a.groups == 1) {
    encode_group<D, true>(row, a, at, lane, tau, 0, D, codes);
    return;
  }
#pragma unroll 1
  for (int group = 0; group < a.groups; ++group)
    encode_group<D, false>(row, a, at, lane, tau, group, D / a.groups, codes);
}

template <int D, class Row>
OSCAR_DEVICE void encode_lloyd_max(const Row& row, const WriteArguments& a, const RowPlace& at, int t,
                                   float tau, UnitCodes (&codes)[D / 32]) {
  const auto clipped = [&](int m, float(&v)[8]) {
    row.unit(m, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = v[i] < -tau ? -tau : v[i] > tau ? tau : v[i];
  };
  double sum = 0, squares = 0;
#pragma unroll
  for (int m = 0; m < Row::kUnits; ++m) {
    float v[8];
    clipped(m, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += v[i];
  }
  const float mean = static_cast<float>(quad_sum(sum) / D);
#pragma unroll
  for (int m = 0; m < Row::kUnits; ++m) {
    float v[8];
    clipped(m, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const double difference = __fsub_rn(v[i], mean);
      squares = fma(difference, difference, squares);
    }
  }
  const float sigma = __fsqrt_rn(__fadd_rn(static_cast<float>(quad_sum(squares) / D), 1e-8f));
  const float scale = __fmul_rn(a.step, sigma), zero = __fsub_rn(1.5f, __fdiv_rn(mean, scale));
  store_levels<D>(a, at, t, 0, scale, same_nan(zero));
  const Steps steps{
      {first_of_ratio(-a.threshold, sigma), first_of_ratio(0.f, sigma), first_of_ratio(a.threshold, sigma)},
      mean};
#pragma unroll
  for (int m = 0; m < Row::kUnits; ++m) {
    float v[8];
    clipped(m, v);
    codes[m] = codes_of(v, steps);
  }
}

// All lanes of the warp together.
template <int D, ClipClass kClass, class Row>
OSCAR_DEVICE void write_row(const Row& row, const WriteArguments& a, const RowPlace& at, int lane) {
  const int t = lane & 3;
  const float tau = clip_threshold<kClass>(row, D, a.clip_index, a.bisect);
  UnitCodes codes[D / 32];
  if (kClass == ClipClass::any && a.step > 0) {
    encode_lloyd_max<D>(row, a, at, t, tau, codes);
  } else {
    encode_range<D>(row, a, at, lane, tau, codes);
  }
  if (a.layout == WriteLayout::native_keys) {
    store_native_keys<D>(codes, at, t);
  } else if (a.layout == WriteLayout::native_values) {
    store_native_values<D>(codes, at, lane);
  } else if constexpr (D == 64 || D % 128 == 0) {
    store_sglang<D>(codes, at, t, a.codes);
  }
}

template <int D>
OSCAR_DEVICE void load_bf16(PackedRow<D>& row, const __nv_bfloat16* from, int t) {
#pragma unroll
  for (int m = 0; m < D / 32; ++m) {
    const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from + 32 * m + 8 * t));
    row.x[4 * m] = v.x;
    row.x[4 * m + 1] = v.y;
    row.x[4 * m + 2] = v.z;
    row.x[4 * m + 3] = v.w;
  }
}
template <class Row>
OSCAR_DEVICE void load_f32(Row& row, const float* from, int t) {
#pragma unroll
  for (int m = 0; m < Row::kUnits; ++m) {
    const float4* at = reinterpret_cast<const float4*>(from + 32 * m + 8 * t);
    const float4 a = __ldcs(at), b = __ldcs(at + 1);
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    row.set_unit(m, v);
  }
}

// The mean of a head, in the cache's basis, off a row.
template <class Row>
OSCAR_DEVICE void subtract_mean(Row& row, const float* mean, int t) {
#pragma unroll
  for (int m = 0; m < Row::kUnits; ++m) {
    float v[8];
    row.unit(m, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fsub_rn(v[i], mean[32 * m + 8 * t + i]);
    row.set_unit(m, v);
  }
}

// The row of `head` that begins at element `from`, less the mean.
template <int D, class Row>
OSCAR_DEVICE void load_row(Row& row, const WriteArguments& a, int64_t from, int head, int t) {
  if (a.f32) {
    // The mean comes off before the row is rounded.
    FloatRow<D> exact;
    load_f32(exact, static_cast<const float*>(a.rows) + from, t);
    if (a.mean) subtract_mean(exact, a.mean + head * D, t);
    convert(exact, row);
  } else {
    PackedRow<D> packed;
    load_bf16(packed, static_cast<const __nv_bfloat16*>(a.rows) + from, t);
    convert(packed, row);
    if (a.mean) subtract_mean(row, a.mean + head * D, t);
  }
}

// The root mean square of a row, in what float16 holds (libcalib/codecs/vector.cpp).
template <int D, template <int> class RowOf>
OSCAR_DEVICE float row_norm(const RowOf<D>& row) {
  double squares = 0;
#pragma unroll
  for (int m = 0; m < D / 32; ++m) {
    float v[8];
    row.unit(m, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fma(static_cast<double>(v[i]), static_cast<double>(v[i]), squares);
  }
  const double norm = fmin(fmax(__dsqrt_rn(quad_sum(squares) / D), 0x1p-24), 65504.0);
  return __half2float(__float2half_rn(static_cast<float>(norm)));
}

}  // namespace oscar::cuda
