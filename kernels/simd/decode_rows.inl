// Decode over rows of numbers: exact ones, and coded ones where a part is too short for anything cleverer.

namespace oscar::OSCAR_LEVEL {
namespace {

// logits[h * stride + t] of `count` rows for H heads, q (H, dim).
template <int H, typename Row>
void row_keys(const Row* const* rows, int count, int dim, const float* q, float* logits, int64_t stride) {
  constexpr int kRows = 2;
  for (int t = 0; t < count; t += kRows) {
    const Row* row[kRows];
    for (int n = 0; n < kRows; ++n) row[n] = rows[t + n < count ? t + n : t];
    vf acc[H][kRows] = {};
    for (int i = 0; i < dim; i += W) {
      OSCAR_UNROLL
      for (int n = 0; n < kRows; ++n) {
        const vf x = load_row(row[n], i);
        OSCAR_UNROLL
        for (int h = 0; h < H; ++h) acc[h][n] = fma(x, load(q + h * dim + i), acc[h][n]);
      }
    }
    for (int n = 0; n < kRows && t + n < count; ++n) {
      for (int h = 0; h < H; ++h) logits[h * stride + t + n] = sum(acc[h][n]);
    }
  }
}

// o (H, dim) += weights[h * stride + t] times the rows.
template <int H, typename Row>
void row_values(const Row* const* rows, int count, int dim, const float* weights, int64_t stride, float* o) {
  constexpr int N = 2;  // dim is a multiple of 32
  for (int i = 0; i < dim; i += N * W) {
    vf acc[H][N];
    OSCAR_UNROLL
    for (int h = 0; h < H; ++h) {
      for (int n = 0; n < N; ++n) acc[h][n] = load(o + h * dim + i + n * W);
    }
    for (int t = 0; t < count; ++t) {
      const vf x[N] = {load_row(rows[t], i), load_row(rows[t], i + W)};
      OSCAR_UNROLL
      for (int h = 0; h < H; ++h) {
        const vf w = fill(weights[h * stride + t]);
        for (int n = 0; n < N; ++n) acc[h][n] = fma(x[n], w, acc[h][n]);
      }
    }
    OSCAR_UNROLL
    for (int h = 0; h < H; ++h) {
      for (int n = 0; n < N; ++n) store(o + h * dim + i + n * W, acc[h][n]);
    }
  }
}

constexpr int kRowsAtOnce = 64;

// The bfloat16 rows [first, first + count) of an exact part.
struct ExactRows {
  const uint16_t* at[kRowsAtOnce];
  ExactRows(const DecodePart& part, bool keys, int32_t first, int count) {
    const CacheFormat& f = *part.format;
    const uint16_t* rows = keys ? part.inputs->exact_k : part.inputs->exact_v;
    for (int t = 0; t < count; ++t) {
      at[t] = rows + (int64_t{part.table[first + t]} * f.kv_heads + part.head) * f.dim;
    }
  }
};

void exact_keys(const DecodePart& part, const PartPlan& plan, const float* q, DecodeScratch& s) {
  const int dim = part.format->dim;
  for (int32_t t = part.first; t < part.end; t += kRowsAtOnce) {
    const int count = static_cast<int>(lower(kRowsAtOnce, part.end - t));
    const ExactRows rows(part, true, t, count);
    head_blocks(part.format->group, [&](int h, auto heads) {
      row_keys<heads.value>(rows.at, count, dim, q + h * dim, s.logits + h * plan.stride + t - plan.begin,
                            plan.stride);
    });
  }
}

void exact_values(const DecodePart& part, const PartPlan& plan, DecodeScratch& s) {
  const int dim = part.format->dim;
  for (int32_t t = part.first; t < part.end; t += kRowsAtOnce) {
    const int count = static_cast<int>(lower(kRowsAtOnce, part.end - t));
    const ExactRows rows(part, false, t, count);
    head_blocks(part.format->group, [&](int h, auto heads) {
      row_values<heads.value>(rows.at, count, dim, s.logits + h * plan.stride + t - plan.begin, plan.stride,
                              s.o + h * dim);
    });
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
