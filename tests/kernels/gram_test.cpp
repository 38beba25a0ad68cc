#include <cmath>

#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

TEST(Gram, SmallIntegersAreExact) {
  for (const int dim : {1, 3, 8, 31, 32, 64, 80, 96, 128, 192, 256}) {
    for (const int64_t n : {0, 1, 127, 128, 129, 300}) {
      const int64_t stride = dim + 5;
      std::vector<float> rows(n * stride + 1), weights(n + 1);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(static_cast<int>(i * 31 % 7) - 3);
      for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 4);
      for (const float* weight :
           {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
        std::vector<double> expected(dim * dim, 2.0);
        add_gram_reference(rows.data(), stride, weight, n, dim, expected.data());
        each_level([&](const KernelTable& level) {
          std::vector<double> out(dim * dim, 2.0);
          level.add_gram(rows.data(), stride, weight, n, dim, out.data());
          EXPECT_EQ(out, expected) << "dim " << dim << " n " << n << (weight ? " weighted" : "");
        });
      }
    }
  }
}

TEST(Gram, CloseAndExactlySymmetric) {
  for (const int dim : {64, 80, 128}) {
    const int64_t n = 1000;
    auto rows = normal(n * dim, 3), weights = normal(n, 4);
    for (float& weight : weights) weight = weight * weight;
    for (int64_t r = 0; r < n; ++r) rows[r * dim + 7] *= 100;  // a channel of outliers
    std::vector<double> expected(dim * dim);
    add_gram_reference(rows.data(), dim, weights.data(), n, dim, expected.data());
    each_level([&](const KernelTable& level) {
      std::vector<double> out(dim * dim);
      level.add_gram(rows.data(), dim, weights.data(), n, dim, out.data());
      for (int i = 0; i < dim; ++i) {
        for (int j = 0; j < dim; ++j) {
          EXPECT_EQ(out[i * dim + j], out[j * dim + i]);
          EXPECT_NEAR(out[i * dim + j], expected[i * dim + j],
                      1e-6 * std::sqrt(expected[i * dim + i] * expected[j * dim + j]));
        }
      }
    });
  }
}

TEST(Gram, RowsAddUp) {
  const int dim = 80;
  const int64_t n = 333, stride = 2 * dim;
  const auto rows = normal(n * stride, 5), weights = normal(n, 6);
  each_level([&](const KernelTable& level) {
    std::vector<double> sum(dim, 1.0), weighted(dim, 1.0);
    level.add_rows(rows.data(), stride, nullptr, n, dim, sum.data());
    level.add_rows(rows.data(), stride, weights.data(), n, dim, weighted.data());
    for (int i = 0; i < dim; ++i) {
      double expected = 1, expected_weighted = 1;
      for (int64_t r = 0; r < n; ++r) {
        expected += rows[r * stride + i];
        expected_weighted += double(weights[r]) * rows[r * stride + i];
      }
      EXPECT_NEAR(sum[i], expected, 1e-10);
      EXPECT_NEAR(weighted[i], expected_weighted, 1e-10);
    }
  });
}

}  // namespace
}  // namespace oscar::test
