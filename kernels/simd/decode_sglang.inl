// Decode over the rows of the serving engine (kernels/int2.h): lanes are channels, a quarter of the row a bit
// position.

namespace oscar::OSCAR_LEVEL {
namespace {

// The slots of at most 64 tokens: where their codes are, and their scales and zeros (2 groups, 64) as
// float32.
struct SglangRows {
  const uint8_t* codes[kRowsAtOnce];
  SglangRows(const DecodePart& part, bool keys, int32_t first, int count, float* scale_zero) {
    const CacheFormat& f = *part.format;
    const DecodeInputs& in = *part.inputs;
    const int values = 2 * f.k.groups;
    const void* from = keys ? in.k_scale_zero : in.v_scale_zero;
    for (int t = 0; t < count; ++t) {
      const int64_t row = int64_t{part.table[first + t]} * f.kv_heads + part.head;
      codes[t] = (keys ? in.k_codes : in.v_codes) + row * (f.dim / 4);
      for (int i = 0; i < values; ++i) {
        float& to = scale_zero[i * kRowsAtOnce + t];
        if (f.scale_zero == FloatType::f32) {
          to = static_cast<const float*>(from)[row * values + i];
        } else {
          const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(from)[row * values + i])
                                << 16;
          std::memcpy(&to, &bits, sizeof to);
        }
      }
    }
  }
};

OSCAR_INLINE float quarter_unit(int k) {
  return k == 0 ? 1.0f : k == 1 ? 0.25f : k == 2 ? 0.0625f : 0.015625f;
}
OSCAR_INLINE vf code_at_quarter(vi x, int k) {
  return __builtin_convertvector(x & (3 << 2 * k), vf);
}

template <int H>
void sglang_keys_rows(const SglangRows& rows, int count, int dim, int groups, const float* scale_zero,
                      const float* q, const float (&sums)[H][4], float* logits, int64_t stride) {
  const int quarter = dim / 4;
  for (int t = 0; t < count; ++t) {
    vf all[H] = {};
    for (int k = 0; k < 4; ++k) {  // groups are whole quarters
      vf acc[H] = {};
      for (int i = 0; i < quarter; i += W) {
        const vf code = code_at_quarter(load_bytes(rows.codes[t] + i), k);
        OSCAR_UNROLL
        for (int h = 0; h < H; ++h) acc[h] = fma(code, load(q + h * dim + k * quarter + i), acc[h]);
      }
      const vf scale = fill(scale_zero[2 * (k * groups / 4) * kRowsAtOnce + t] * quarter_unit(k));
      OSCAR_UNROLL
      for (int h = 0; h < H; ++h) all[h] = fma(acc[h], scale, all[h]);
    }
    for (int h = 0; h < H; ++h) {
      float logit = sum(all[h]);
      for (int g = 0; g < groups; ++g) {
        const float *scale = scale_zero + 2 * g * kRowsAtOnce, *zero = scale + kRowsAtOnce;
        logit -= scale[t] * zero[t] * sums[h][g];
      }
      logits[h * stride + t] = logit;
    }
  }
}

// o (H, dim) += codes * weights (groups, H, 64).
template <int H>
void sglang_values_rows(const SglangRows& rows, int count, int dim, int groups, const float* weights,
                        float* o) {
  const int quarter = dim / 4;
  for (int i = 0; i < quarter; i += W) {
    for (int k = 0; k < 4; ++k) {
      const float* of_group = weights + k * groups / 4 * H * kRowsAtOnce;
      float* at = o + k * quarter + i;
      vf acc[H] = {};
      for (int t = 0; t < count; ++t) {
        const vf code = code_at_quarter(load_bytes(rows.codes[t] + i), k);
        OSCAR_UNROLL
        for (int h = 0; h < H; ++h) acc[h] = fma(code, fill(of_group[h * kRowsAtOnce + t]), acc[h]);
      }
      for (int h = 0; h < H; ++h) store(at + h * dim, fma(acc[h], fill(quarter_unit(k)), load(at + h * dim)));
    }
  }
}

void sglang_keys(const DecodePart& part, const PartPlan& plan, const float* q, DecodeScratch& s) {
  const int dim = part.format->dim, groups = part.format->k.groups, size = dim / groups;
  for (int32_t t = part.first; t < part.end; t += kRowsAtOnce) {
    const int count = static_cast<int>(lower(kRowsAtOnce, part.end - t));
    const SglangRows rows(part, true, t, count, s.scales);
    head_blocks(part.format->group, [&](int first, auto heads) {
      constexpr int H = heads.value;
      float sums[H][4];
      for (int h = 0; h < H; ++h) {
        for (int g = 0; g < groups; ++g) {
          vf total{};
          for (int i = g * size; i < (g + 1) * size; i += W) total += load(q + (first + h) * dim + i);
          sums[h][g] = sum(total);
        }
      }
      sglang_keys_rows<H>(rows, count, dim, groups, s.scales, q + first * dim, sums,
                          s.logits + first * plan.stride + t - plan.begin, plan.stride);
    });
  }
}

void sglang_values(const DecodePart& part, const PartPlan& plan, DecodeScratch& s) {
  const int dim = part.format->dim, groups = part.format->v.groups, size = dim / groups;
  for (int32_t t = part.first; t < part.end; t += kRowsAtOnce) {
    const int count = static_cast<int>(lower(kRowsAtOnce, part.end - t));
    const SglangRows rows(part, false, t, count, s.scales);
    head_blocks(part.format->group, [&](int first, auto heads) {
      constexpr int H = heads.value;
      float* o = s.o + first * dim;
      for (int h = 0; h < H; ++h) {
        const float* weights = s.logits + (first + h) * plan.stride + t - plan.begin;
        for (int g = 0; g < groups; ++g) {
          const float *scale = s.scales + 2 * g * kRowsAtOnce, *zero = scale + kRowsAtOnce;
          float* to = s.operands + (g * H + h) * kRowsAtOnce;
          float zeros = 0;
          for (int n = 0; n < count; ++n) {
            to[n] = weights[n] * scale[n];
            zeros -= to[n] * zero[n];
          }
          for (int i = g * size; i < (g + 1) * size; i += W)
            store(o + h * dim + i, load(o + h * dim + i) + fill(zeros));
        }
      }
      sglang_values_rows<H>(rows, count, dim, groups, s.operands, o);
    });
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
