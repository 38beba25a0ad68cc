#include "kernels/gram.h"

namespace oscar {

void add_gram_reference(const float* rows, int64_t stride, const float* weights, int64_t n, int dim,
                        double* out) {
  for (int64_t r = 0; r < n; ++r) {
    const float* x = rows + r * stride;
    const double weight = weights ? weights[r] : 1.0;
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) out[static_cast<int64_t>(i) * dim + j] += weight * x[i] * x[j];
    }
  }
}

}  // namespace oscar
