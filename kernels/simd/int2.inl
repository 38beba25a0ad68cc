// Every float operation here is the one of int2_reference.cpp, in the same order and rounded as often: no
// fma().

namespace oscar::OSCAR_LEVEL {
namespace {

typedef uint8_t vb __attribute__((vector_size(W)));
typedef int32_t vi_anywhere __attribute__((vector_size(4 * W), aligned(4), may_alias));

OSCAR_INLINE vi load(const int32_t* p) {
  return *reinterpret_cast<const vi_anywhere*>(p);
}
OSCAR_INLINE void store(int32_t* p, vi x) {
  *reinterpret_cast<vi_anywhere*>(p) = x;
}

OSCAR_INLINE int32_t bf16_bits(int32_t x) {
  const uint32_t u = static_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<int32_t>((u | 0x400000u) & 0xffff0000u);
  return static_cast<int32_t>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}
OSCAR_INLINE vi bf16_bits(vi x) {
  const vi rounded = (x + 0x7fff + ((x >> 16) & 1)) & -65536;
  return (x & 0x7fffffff) > 0x7f800000 ? (x | 0x400000) & -65536 : rounded;
}

// The k-th smallest (from 1) of `magnitudes`, whose padding is INT32_MAX: one bit of the answer a step, `low`
// the last one.
float select(const int32_t* magnitudes, int64_t padded, int k, int low) {
  int32_t answer = 0;
  for (int bit = 30; bit >= low; --bit) {
    const vi candidate = fill(answer | ((int32_t{1} << bit) - 1));
    vi below{};
    for (int64_t i = 0; i < padded; i += W) below -= load(magnitudes + i) <= candidate;
    int count = 0;
    for (int i = 0; i < W; ++i) count += below[i];
    if (count < k) answer |= int32_t{1} << bit;
  }
  float value;
  std::memcpy(&value, &answer, sizeof value);
  return value;
}

OSCAR_INLINE int32_t code_of(float x, float scale, float zero) {
  float level = x / scale + zero + 0.5f;
  level = level > 0.0f ? level : 0.0f;
  level = level < 3.0f ? level : 3.0f;
  return static_cast<int32_t>(level);
}
OSCAR_INLINE vi code_of(vf x, vf scale, vf zero) {
  const vf level = smaller(larger(x / scale + zero + fill(0.5f), vf{}), fill(3.0f));
  return __builtin_convertvector(level, vi);
}

void encode_group(const float* x, int64_t size, float* scale_zero, int32_t* levels) {
  float low = INFINITY, high = -INFINITY;
  vf lows = fill(low), highs = fill(high);
  int64_t i = 0;
  for (; i + W <= size; i += W) {
    lows = smaller(load(x + i), lows);
    highs = larger(load(x + i), highs);
  }
  for (int lane = 0; lane < W; ++lane) {
    low = lows[lane] < low ? lows[lane] : low;
    high = highs[lane] > high ? highs[lane] : high;
  }
  for (; i < size; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  low += 0.0f;
  const float range = high - low;
  const float scale = (range > 1e-8f ? range : 1e-8f) / 3.0f, zero = -low / scale;
  scale_zero[0] = scale;
  scale_zero[1] = zero;
  for (i = 0; i + W <= size; i += W) store(levels + i, code_of(load(x + i), fill(scale), fill(zero)));
  for (; i < size; ++i) levels[i] = code_of(x[i], scale, zero);
}

void int2_encode(const int2::Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero) {
  const int64_t dim = rule.dim, size = dim / rule.groups, quarter = dim / 4, padded = ceil_div(dim, W) * W;
  const int clip = int2::clip_index(rule.clip, rule.dim);
#pragma omp parallel if (n >= 256)
  {
    Scratch<float> x(padded);
    Scratch<int32_t> levels(padded);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < n; ++r) {
      std::memcpy(x, rows + r * dim, sizeof(float) * dim);
      if (rule.round_bf16) {
        for (int64_t i = 0; i < padded; i += W) store(x + i, floats(bf16_bits(bits(load(x + i)))));
      }
      if (clip >= 0) {
        for (int64_t i = 0; i < padded; i += W) store(levels + i, bits(load(x + i)) & 0x7fffffff);
        for (int64_t i = dim; i < padded; ++i) levels[i] = INT32_MAX;
        const vf tau = fill(select(levels, padded, clip + 1, rule.round_bf16 ? 16 : 0));
        for (int64_t i = 0; i < padded; i += W) store(x + i, smaller(tau, larger(-tau, load(x + i))));
      }
      for (int64_t g = 0; g < rule.groups; ++g) {
        encode_group(x + g * size, size, scale_zero + 2 * (r * rule.groups + g), levels + g * size);
      }
      uint8_t* out = codes + r * quarter;
      int64_t i = 0;
      for (; i + W <= quarter; i += W) {
        const int32_t* c = levels + i;
        const vi packed =
            load(c) | load(c + quarter) << 2 | load(c + 2 * quarter) << 4 | load(c + 3 * quarter) << 6;
        const vb narrow = __builtin_convertvector(packed, vb);
        std::memcpy(out + i, &narrow, W);
      }
      for (; i < quarter; ++i) {
        const int32_t* c = levels + i;
        out[i] = static_cast<uint8_t>(c[0] | c[quarter] << 2 | c[2 * quarter] << 4 | c[3 * quarter] << 6);
      }
    }
  }
}

// Elements whose codes are `shift` bits up in bytes [0, count).
OSCAR_INLINE void decode_run(const uint8_t* codes, int64_t count, int shift, float scale, float zero,
                             float* out) {
  int64_t i = 0;
  for (; i + W <= count; i += W) {
    vb bytes;
    std::memcpy(&bytes, codes + i, W);
    const vi code = __builtin_convertvector(bytes, vi) >> shift & 3;
    store(out + i, (__builtin_convertvector(code, vf) - fill(zero)) * fill(scale));
  }
  for (; i < count; ++i) out[i] = (static_cast<float>(codes[i] >> shift & 3) - zero) * scale;
}

void int2_decode(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n, float* rows) {
  const int64_t size = dim / groups, quarter = dim / 4;
#pragma omp parallel for schedule(static) if (n >= 1024)
  for (int64_t r = 0; r < n; ++r) {
    const uint8_t* code = codes + r * quarter;
    for (int64_t i = 0; i < dim;) {  // runs end where a group or a quarter of the row does
      const int64_t group = i / size, part = i / quarter,
                    end = lower((group + 1) * size, (part + 1) * quarter);
      const float* sz = scale_zero + 2 * (r * groups + group);
      decode_run(code + i % quarter, end - i, static_cast<int>(2 * part), sz[0], sz[1], rows + r * dim + i);
      i = end;
    }
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
