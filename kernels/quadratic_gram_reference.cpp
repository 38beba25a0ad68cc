#include "kernels/quadratic_gram.h"

namespace oscar {

void add_quadratic_gram_reference(const QuadraticGram& p, double* gram, double* total) {
  for (int64_t t = 0; t < p.n; ++t) {
    const float* k = p.k + t * p.k_stride;
    const float* v = p.v + t * p.v_stride;
    double c = 0;
    for (int i = 0; i < p.dim_k; ++i) {
      for (int j = 0; j < p.dim_k; ++j) c += double(k[i]) * p.form[static_cast<int64_t>(i) * p.dim_k + j] * k[j];
    }
    if (c < 0) c = 0;
    *total += c;
    for (int i = 0; i < p.dim_v; ++i) {
      for (int j = 0; j < p.dim_v; ++j) gram[static_cast<int64_t>(i) * p.dim_v + j] += c * v[i] * v[j];
    }
  }
}

}  // namespace oscar
