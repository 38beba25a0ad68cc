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
cudaError_t launch_write_rotated_some(int dim, const WriteArguments& a, cudaStream_t stream);  // few, too
cudaError_t launch_write_rotated_any(int dim, const WriteArguments& a, cudaStream_t stream);
cudaError_t launch_write_rotated_float(int dim, const WriteArguments& a, cudaStream_t stream);

// The NaN of an x86 processor, so that rows with infinities have the reference's bytes.
OSCAR_DEVICE float same_nan(float x) {
  return isnan(x) ? __uint_as_float(0xffc00000u) : x;
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

// Rounding moves a step by far less than bfloat16 resolves, so that mostly the least bfloat16 from a step on
// is known without knowing the step exactly: one near low + (k + 1/2) range / 3, k = 0, 1, 2.
struct NearStep {
  float first;
  bool sure;
};
OSCAR_DEVICE NearStep near_step(int k, float low, float high, float range) {
  const float reach = 0x1p-21f * (fabsf(low) + fabsf(high)), step = fmaf(k + 0.5f, range * (1.f / 3.f), low);
  const float first = bf16_at_least(step - reach);
  return {first, __float_as_uint(first) == __float_as_uint(bf16_at_least(step + reach))};
}
template <bool kPacked>
OSCAR_DEVICE Steps range_steps(float low, float high, float range, float scale, float zero) {
  Steps steps;
  steps.offset = 0;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    const NearStep near = near_step(k, low, high, range);
    steps.first[k] = near.first;
    if (kPacked && near.sure) continue;
    steps.first[k] = first_of_code(k + 1, scale, zero);
    if (kPacked) steps.first[k] = bf16_at_least(steps.first[k]);
  }
  return steps;
}
// Whether `affine` gives the codes of all bfloat16 rows: it never falls, so it does if it rises where the
// codes do. Each lane of a row checks a step.
OSCAR_DEVICE bool affine_holds(const Affine& affine, float low, float high, float range, int lane) {
  const int k = min(lane & 3, 2);
  const NearStep near = near_step(k, low, high, range);
  const unsigned above = affine.code(near.first) - Affine::kExcess,
                 below = affine.code(bf16_below(near.first)) - Affine::kExcess;
  const bool holds = near.sure && above == k + 1u && below == static_cast<unsigned>(k);
  return (__ballot_sync(kWarp, holds) >> (lane & 28) & 15u) == 15u;
}

template <int D, class Row>
OSCAR_DEVICE void encode_range(const Row& row, const WriteArguments& a, const RowPlace& at, int lane,
                               float tau, UnitCodes (&codes)[D / 32]) {
  const int t = lane & 3, size = D / a.groups;
#pragma unroll 1
  for (int group = 0; group < a.groups; ++group) {
    const auto inside = [&](int m) {  // sizes are multiples of 8
      const int channel = 32 * m + 8 * t - group * size;
      return channel >= 0 && channel < size;
    };
    float low, high;
    row.bounds(inside, low, high);
    if (low <= high) {  // else all are NaN, and the bounds infinite
      low = low < -tau ? -tau : low > tau ? tau : low;
      high = high < -tau ? -tau : high > tau ? tau : high;
    }
    low = __fadd_rn(low, 0.f);
    const float range = __fsub_rn(high, low);
    const float scale = __fdiv_rn(range > 1e-8f ? range : 1e-8f, 3.f),
                zero = same_nan(__fdiv_rn(-low, scale));
    store_levels<D>(a, at, t, group, scale, zero);
    const bool regular = range > 1e-8f && range < INFINITY && fabsf(zero) < kMaxZero;
    if constexpr (Row::kPacked) {
      const float slope = __frcp_rn(range);
      const Affine affine{slope, -low * slope};
      if (affine_holds(affine, low, high, range, lane) && regular) {
#pragma unroll
        for (int m = 0; m < Row::kUnits; ++m) {
          if (inside(m)) codes[m] = row.codes(m, affine);
        }
        continue;
      }
    }
    if (regular) {
      const Steps steps = range_steps<Row::kPacked>(low, high, range, scale, zero);
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

}  // namespace oscar::cuda
