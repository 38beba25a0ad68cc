// Blocks of MR rows x PD columns in double registers. Of the form and of the sum the upper half is computed.

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int WD = W / 2, PD = NR * WD;  // doubles of a vector, of a panel
constexpr int kFormRows = 96;            // a multiple of MR; their keys and values stay in the second cache

typedef double vd __attribute__((vector_size(4 * W)));
typedef double vd_anywhere __attribute__((vector_size(4 * W), aligned(8), may_alias));

OSCAR_INLINE vd load_double(const double* p) {
  return *reinterpret_cast<const vd_anywhere*>(p);
}
OSCAR_INLINE void store_double(double* p, vd x) {
  *reinterpret_cast<vd_anywhere*>(p) = x;
}
#if OSCAR_WIDTH == 16 && defined(__AVX512F__)
OSCAR_INLINE vd fill_double(double x) {
  return _mm512_set1_pd(x);
}
OSCAR_INLINE vd fma(vd a, vd b, vd c) {
  return _mm512_fmadd_pd(a, b, c);
}
#elif OSCAR_WIDTH == 8 && defined(__AVX2__) && defined(__FMA__)
OSCAR_INLINE vd fill_double(double x) {
  return _mm256_set1_pd(x);
}
OSCAR_INLINE vd fma(vd a, vd b, vd c) {
  return _mm256_fmadd_pd(a, b, c);
}
#else
OSCAR_INLINE vd fill_double(double x) {
  vd v;
  for (int i = 0; i < WD; ++i) v[i] = x;
  return v;
}
OSCAR_INLINE vd fma(vd a, vd b, vd c) {
  return a * b + c;
}
#endif

// acc[m] = sum over i < depth of left[i * left_stride + m] * right[i * right_stride ...].
OSCAR_INLINE void multiply_doubles(const double* left, int64_t left_stride, const double* right,
                                   int64_t right_stride, int64_t depth, vd (&acc)[MR][NR]) {
  for (int64_t i = 0; i < depth; ++i, left += left_stride, right += right_stride) {
    vd operand[NR];
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) operand[v] = load_double(right + v * WD);
    OSCAR_UNROLL
    for (int m = 0; m < MR; ++m) {
      const vd x = fill_double(left[m]);
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) acc[m][v] = fma(x, operand[v], acc[m][v]);
    }
  }
}

struct FormScratch {
  explicit FormScratch(const QuadraticGram& p)
      : k_ld(ceil_div(p.dim_k, PD) * PD),
        v_width(ceil_div(p.dim_v, PD) * PD),
        v_ld(upper(v_width, ceil_div(p.dim_v, MR) * MR) + 8),  // rows in different cache sets
        form(p.dim_k * k_ld),
        keys(kFormRows * k_ld),
        packed(kFormRows * p.dim_k),
        lanes(kFormRows * WD),
        values(kFormRows * v_ld),
        weighted(kFormRows * v_ld),
        sum(v_ld * v_width) {
    for (int64_t i = 0; i < p.dim_k; ++i) {
      form[i * k_ld + i] = p.form[i * p.dim_k + i];
      for (int64_t j = i + 1; j < p.dim_k; ++j)
        form[i * k_ld + j] = p.form[i * p.dim_k + j] + p.form[j * p.dim_k + i];
    }
  }
  int64_t k_ld, v_width, v_ld;
  Scratch<double> form;    // upper triangular, (Dk, k_ld)
  Scratch<double> keys;    // (rows, k_ld)
  Scratch<double> packed;  // (rows / MR, Dk, MR)
  Scratch<double> lanes;   // (rows, WD), whose sum is c
  Scratch<double> values, weighted, sum;
};

// c of rows [first, first + count), a lane of it each.
void quadratic_forms(const QuadraticGram& p, int64_t first, int64_t count, FormScratch& s) {
  const int64_t dim = p.dim_k, rows = ceil_div(count, MR) * MR;
  std::memset(s.lanes, 0, sizeof(double) * kFormRows * WD);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = p.k + (first + r) * p.k_stride;
    double* to = s.keys + r * s.k_ld;
    double* packed = s.packed + r / MR * dim * MR + r % MR;
    for (int64_t i = 0; i < dim; ++i) packed[i * MR] = to[i] = r < count ? from[i] : 0;
  }
  for (int64_t j = 0; j < dim; j += PD) {
    for (int64_t r = 0; r < rows; r += MR) {
      vd acc[MR][NR] = {};
      multiply_doubles(s.packed + r * dim, MR, s.form + j, s.k_ld, lower(j + PD, dim), acc);
      OSCAR_UNROLL
      for (int m = 0; m < MR; ++m) {
        double* lanes = s.lanes + (r + m) * WD;
        vd sum = load_double(lanes);
        OSCAR_UNROLL
        for (int v = 0; v < NR; ++v)
          sum = fma(acc[m][v], load_double(s.keys + (r + m) * s.k_ld + j + v * WD), sum);
        store_double(lanes, sum);
      }
    }
  }
}

void add_quadratic_gram(const QuadraticGram& p, double* gram, double* total) {
  FormScratch s(p);
  const int64_t dim = p.dim_v;
  for (int64_t first = 0; first < p.n; first += kFormRows) {
    const int64_t count = lower(kFormRows, p.n - first);
    quadratic_forms(p, first, count, s);
    for (int64_t r = 0; r < count; ++r) {
      double c = 0;
      for (int i = 0; i < WD; ++i) c += s.lanes[r * WD + i];
      if (c < 0) c = 0;
      *total += c;
      const float* from = p.v + (first + r) * p.v_stride;
      for (int64_t i = 0; i < dim; ++i) {
        s.values[r * s.v_ld + i] = from[i];
        s.weighted[r * s.v_ld + i] = c * from[i];
      }
    }
    for (int64_t j = 0; j < dim; j += PD) {
      for (int64_t i = 0; i < lower(j + PD, dim); i += MR) {
        vd acc[MR][NR] = {};
        multiply_doubles(s.weighted + i, s.v_ld, s.values + j, s.v_ld, count, acc);
        OSCAR_UNROLL
        for (int m = 0; m < MR; ++m) {
          double* to = s.sum + (i + m) * s.v_width + j;
          OSCAR_UNROLL
          for (int v = 0; v < NR; ++v) store_double(to + v * WD, load_double(to + v * WD) + acc[m][v]);
        }
      }
    }
  }
  for (int64_t i = 0; i < dim; ++i) {
    gram[i * dim + i] += s.sum[i * s.v_width + i];
    for (int64_t j = i + 1; j < dim; ++j) {
      gram[i * dim + j] += s.sum[i * s.v_width + j];
      gram[j * dim + i] += s.sum[i * s.v_width + j];
    }
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
