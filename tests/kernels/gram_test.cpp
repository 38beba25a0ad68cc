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

// Halves of rows of small integers: every product and sum is exact, on any block.
TEST(QuadraticGram, SmallIntegersAreExact) {
  for (const auto& [dim_k, dim_v] : {std::pair{1, 3}, {8, 8}, {31, 12}, {64, 96}, {80, 128}, {128, 64}, {256, 256}}) {
    for (const int64_t n : {0, 1, 95, 96, 97, 200}) {
      const int64_t k_stride = dim_k + 3, v_stride = dim_v + 5;
      std::vector<float> k(n * k_stride + 1), v(n * v_stride + 1);
      std::vector<double> form(dim_k * dim_k);
      for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(static_cast<int>(i * 31 % 7) - 3) / 2;
      for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(static_cast<int>(i * 29 % 5) - 2);
      for (int i = 0; i < dim_k; ++i) {
        for (int j = 0; j < dim_k; ++j) form[i * dim_k + j] = i == j ? dim_k + 3 : (i + j) % 3 - 1;
      }
      const QuadraticGram problem{n, dim_k, dim_v, k.data(), k_stride, v.data(), v_stride, form.data()};
      std::vector<double> expected(dim_v * dim_v, 2.0);
      double weight = 1;
      add_quadratic_gram_reference(problem, expected.data(), &weight);
      each_level([&](const KernelTable& level) {
        std::vector<double> out(dim_v * dim_v, 2.0);
        double total = 1;
        level.add_quadratic_gram(problem, out.data(), &total);
        EXPECT_EQ(out, expected) << "dims " << dim_k << " " << dim_v << " n " << n;
        EXPECT_EQ(total, weight);
      });
    }
  }
}

TEST(QuadraticGram, ToTheRoundingOfDoubles) {
  const int64_t n = 700;
  const int dim_k = 96, dim_v = 80;
  const auto k = normal(n * dim_k, 7), v = normal(n * dim_v, 8), factor = normal(dim_k * 10, 9);
  std::vector<double> form(dim_k * dim_k);  // of rank 10
  for (int i = 0; i < dim_k; ++i) {
    for (int j = 0; j < dim_k; ++j) {
      for (int r = 0; r < 10; ++r) form[i * dim_k + j] += double(factor[i * 10 + r]) * factor[j * 10 + r];
    }
  }
  const QuadraticGram problem{n, dim_k, dim_v, k.data(), dim_k, v.data(), dim_v, form.data()};
  std::vector<double> expected(dim_v * dim_v);
  double weight = 0;
  add_quadratic_gram_reference(problem, expected.data(), &weight);
  each_level([&](const KernelTable& level) {
    std::vector<double> out(dim_v * dim_v);
    double total = 0;
    level.add_quadratic_gram(problem, out.data(), &total);
    EXPECT_LE(relative_error(out, expected), 1e-14);
    EXPECT_NEAR(total / weight, 1, 1e-14);
    for (int i = 0; i < dim_v; ++i) {
      for (int j = 0; j < dim_v; ++j) EXPECT_EQ(out[i * dim_v + j], out[j * dim_v + i]);
    }
  });
}

// A form that is negative counts nothing.
TEST(QuadraticGram, NegativeWeightsAreRounding) {
  const std::vector<float> rows{1, 2, 3, 4};
  const double form = -1;
  const QuadraticGram problem{4, 1, 1, rows.data(), 1, rows.data(), 1, &form};
  each_level([&](const KernelTable& level) {
    double out = 0, total = 0;
    level.add_quadratic_gram(problem, &out, &total);
    EXPECT_EQ(out, 0);
    EXPECT_EQ(total, 0);
  });
}

}  // namespace
}  // namespace oscar::test
