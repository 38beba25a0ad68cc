// Second moments of rows: the hot loop of every target.
#pragma once
#include <cstdint>

namespace oscar {

// out (D, D) double, row-major, += sum over n rows of weight[r] * x[r]^T x[r];  x[r] = rows + r * stride, D floats.
// weights == nullptr: all one. Products and sums of at most 128 rows are float32, the rest is double. One thread.
void add_gram(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* out);
void add_gram_reference(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* out);

// sum (D) double += sum over rows of weight[r] * x[r].
void add_rows(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* sum);

}  // namespace oscar
