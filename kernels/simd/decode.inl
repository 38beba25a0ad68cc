// One part of a decode: logits of its tokens, softmax, values.

namespace oscar::OSCAR_LEVEL {
namespace {

// logits [first, end) of [0, padded) become weights e^(cap(l + base) - high), the others 0. Returns the sum
// of the weights.
float softmax(float* logits, int first, int end, int padded, float base, float cap, float* high) {
  constexpr int N = 4;  // padded is a multiple of 64
  const auto fill_others = [&](float x) {
    for (int t = 0; t < first; ++t) logits[t] = x;
    for (int t = end; t < padded; ++t) logits[t] = x;
  };
  fill_others(0);
  if (base != 0 || cap > 0) {
    for (int t = 0; t < padded; t += N * W) {
      vf x[N];
      for (int n = 0; n < N; ++n) x[n] = load(logits + t + n * W) + fill(base);
      if (cap > 0) soft_cap(x, cap);
      for (int n = 0; n < N; ++n) store(logits + t + n * W, x[n]);
    }
  }
  fill_others(kNothing);
  vf highs = fill(kNothing), sums[N] = {};
  for (int t = 0; t < padded; t += W) highs = larger(load(logits + t), highs);
  *high = highest(highs);
  for (int t = 0; t < padded; t += N * W) {
    vf x[N], p[N];
    for (int n = 0; n < N; ++n) x[n] = larger(fill(kLowest), load(logits + t + n * W) - fill(*high));
    exponentials(x, p);
    for (int n = 0; n < N; ++n) {
      store(logits + t + n * W, p[n]);
      sums[n] += p[n];
    }
  }
  fill_others(0);  // e^kLowest of each is in the sum, which is at least 1
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

int64_t decode_scratch_bytes(const CacheFormat& format) {
  return DecodeScratch(format, nullptr).bytes;
}

// q (group, dim) float32, times the scale of the logits. `memory` is zero before its first part.
void decode_part(const DecodePart& part, const float* q, void* memory, float* partial) {
  const CacheFormat& f = *part.format;
  const DecodeInputs& in = *part.inputs;
  DecodeScratch s(f, memory);
  s.o = partial;
  const int64_t k_bytes = side_bytes(f, f.k), v_bytes = side_bytes(f, f.v);
  const int32_t begin = part.exact ? part.first : part.first / kPage * kPage,
                padded = (part.end - begin + kPage - 1) / kPage * kPage;
  const PartPlan plan{begin, padded, k_bytes, v_bytes, f.kv_heads * (k_bytes + v_bytes)};

  if (part.exact) {
    exact_keys(part, plan, q, s);
  } else if (f.layout == CacheLayout::sglang) {
    sglang_keys(part, plan, q, s);
  } else if (f.k.kind == CodeKind::int2) {
    int2_keys(part, plan, q, s);
  } else if (f.k.kind == CodeKind::planes) {
    plane_keys(part, plan, q, s);
  } else {
    vector_keys(part, plan, q, s);
  }

  float *high = partial + f.group * f.dim, *sums = high + f.group;
  std::memset(s.o, 0, sizeof(float) * f.group * f.dim);
  for (int h = 0; h < f.group; ++h) {
    double base = 0;
    for (int i = 0; in.k_mean && !part.exact && i < f.dim; ++i) {
      base += double{q[h * f.dim + i]} * in.k_mean[part.head * f.dim + i];
    }
    sums[h] = softmax(s.logits + h * plan.stride, part.first - begin, part.end - begin, padded,
                      static_cast<float>(base), in.softcap, high + h);
  }

  if (part.exact) {
    exact_values(part, plan, s);
  } else if (f.layout == CacheLayout::sglang) {
    sglang_values(part, plan, s);
  } else if (f.v.kind == CodeKind::int2) {
    int2_values(part, plan, s);
  } else if (f.v.kind == CodeKind::planes) {
    plane_values(part, plan, s);
  } else {
    vector_values(part, plan, s);
  }
  if (!in.v_mean || part.exact) return;
  for (int h = 0; h < f.group; ++h) {
    for (int i = 0; i < f.dim; ++i) s.o[h * f.dim + i] += sums[h] * in.v_mean[part.head * f.dim + i];
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
