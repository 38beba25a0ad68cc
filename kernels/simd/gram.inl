// Rank-128 updates: blocks of MR rows x P columns of the upper half in float32 registers, then into a double
// matrix.

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int kGramRows = 128;

template <typename Block>
OSCAR_INLINE void gram_block(const float* a, const float* b, int64_t stride, int64_t count, Block& block) {
  vf acc[MR][NR] = {};
  for (int64_t r = 0; r < count; ++r, a += stride, b += stride) {
    vf operand[NR];
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) operand[v] = load(b + v * W);
    OSCAR_UNROLL
    for (int i = 0; i < MR; ++i) {
      const vf x = fill(a[i]);
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) acc[i][v] = fma(x, operand[v], acc[i][v]);
    }
  }
  OSCAR_UNROLL
  for (int i = 0; i < MR; ++i) {
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) store(block[i] + v * W, acc[i][v]);
  }
}

void add_gram(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* out) {
  const int64_t width = ceil_div(dim, P) * P, height = ceil_div(dim, MR) * MR;
  // Blocks read past `dim` into zeros; the extra 64 bytes keep the rows of a power-of-two dim in different
  // cache sets.
  const int64_t ld = upper(width, height) + 16;
  Scratch<float> x(kGramRows * ld), weighted(weights ? kGramRows * ld : 0);
  Scratch<double> sum(height * width);
  for (int64_t r0 = 0; r0 < n; r0 += kGramRows) {
    const int64_t count = lower(kGramRows, n - r0);
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(x + r * ld, rows + (r0 + r) * stride, sizeof(float) * dim);
      if (!weights) continue;
      const float* from = x + r * ld;
      float* to = weighted + r * ld;
      for (int i = 0; i < dim; ++i) to[i] = weights[r0 + r] * from[i];
    }
    const float* left = weights ? weighted : x;
    for (int64_t j = 0; j < dim; j += P) {
      for (int64_t i = 0; i < lower(j + P, dim); i += MR) {
        alignas(64) float block[MR][P];
        gram_block(left + i, x + j, ld, count, block);
        for (int bi = 0; bi < MR; ++bi) {
          double* to = sum + (i + bi) * width + j;
          for (int bj = 0; bj < P; ++bj) to[bj] += block[bi][bj];
        }
      }
    }
  }
  for (int64_t i = 0; i < dim; ++i) {
    out[i * dim + i] += sum[i * width + i];
    for (int64_t j = i + 1; j < dim; ++j) {
      out[i * dim + j] += sum[i * width + j];
      out[j * dim + i] += sum[i * width + j];
    }
  }
}

void add_rows(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* sum) {
  for (int64_t r = 0; r < n; ++r) {
    const double weight = weights ? weights[r] : 1.0;
    for (int i = 0; i < dim; ++i) sum[i] += weight * rows[r * stride + i];
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
