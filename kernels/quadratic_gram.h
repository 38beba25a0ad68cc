// Second moments of values, each weighted by a quadratic form of its key: the second pass of sst-proxy.
#pragma once
#include <cstdint>

namespace oscar {

struct QuadraticGram {
  int64_t n = 0;                 // rows
  int dim_k = 0, dim_v = 0;
  const float* k = nullptr;      // k[t * k_stride + i]
  int64_t k_stride = 0;
  const float* v = nullptr;      // v[t * v_stride + i]
  int64_t v_stride = 0;
  const double* form = nullptr;  // (Dk, Dk) symmetric positive semidefinite
};

// gram (Dv, Dv) row-major += sum over t of c[t] v[t]^T v[t] and *total += sum of c[t], c[t] = k[t] form k[t]^T; a
// negative c is rounding and counts as 0. Products and sums are double, so that this and a GPU's differ by their
// rounding alone. One thread.
void add_quadratic_gram(const QuadraticGram& problem, double* gram, double* total);
void add_quadratic_gram_reference(const QuadraticGram& problem, double* gram, double* total);

}  // namespace oscar
