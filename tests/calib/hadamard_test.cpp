#include "libcalib/hadamard.h"

#include <algorithm>
#include <set>

#include "libcalib/permutation.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

constexpr int kOrders[] = {1,  2,  4,  8,   12,  16,  20,  24,  28,  32,  36,  40,  44,  48,  56,  60, 64,
                           72, 80, 96, 104, 112, 120, 128, 144, 160, 176, 192, 224, 256, 320, 512, 576};

TEST(Hadamard, OrthogonalWithEqualMagnitudes) {
  for (const int d : kOrders) {
    const Matrix h = hadamard(d);
    EXPECT_LT((h * h.transpose() - Matrix::Identity(d, d)).cwiseAbs().maxCoeff(), 1e-12) << d;
    EXPECT_LT((h.cwiseAbs().array() - 1 / std::sqrt(d)).abs().maxCoeff(), 1e-15) << d;
    EXPECT_GT(h.row(0).minCoeff(), 0) << d;
    EXPECT_GT(h.col(0).minCoeff(), 0) << d;
  }
}

TEST(Hadamard, PowerOfTwoIsSylvester) {
  const Matrix h = hadamard(64);
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j)
      ASSERT_EQ(h(i, j) < 0, std::popcount(static_cast<unsigned>(i & j)) % 2 == 1) << i << ' ' << j;
  }
}

TEST(Hadamard, OtherOrdersAreRefused) {
  for (const int d : {0, -4, 3, 6, 10, 14, 50, 65, 94}) EXPECT_THROW(hadamard(d), std::invalid_argument) << d;
}

// OSCAR Lemma 1: H spreads any spectrum evenly.
TEST(Hadamard, Lemma1) {
  for (const int d : kOrders) {
    const Vector lambda = Eigen::Map<const Eigen::VectorXf>(test::normal(static_cast<size_t>(d), 5).data(), d)
                              .cast<double>()
                              .array()
                              .exp();
    const Matrix h = hadamard(d);
    const Vector diagonal = (h.transpose() * lambda.asDiagonal() * h).diagonal();
    EXPECT_LT((diagonal.array() / (lambda.sum() / d) - 1).abs().maxCoeff(), 1e-12) << d;
  }
}

TEST(Permutation, BitReversalOfAPowerOfTwo) {
  EXPECT_EQ(bit_reversal(8), (std::vector<int>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(bit_reversal(1), (std::vector<int>{0}));
  EXPECT_THROW(bit_reversal(0), std::invalid_argument);
}

TEST(Permutation, VanDerCorputOrderOtherwise) {
  EXPECT_EQ(bit_reversal(6), (std::vector<int>{0, 4, 2, 1, 5, 3}));
}

TEST(Permutation, TopDirectionsFallIntoDistinctGroups) {
  for (const int d : kOrders) {
    const auto beta = bit_reversal(d);
    EXPECT_EQ(std::set<int>(beta.begin(), beta.end()).size(), static_cast<size_t>(d));
    EXPECT_EQ(*std::max_element(beta.begin(), beta.end()), d - 1);
    for (int group = 1; group <= d; group *= 2) {
      if (d % group != 0) continue;
      std::set<int> groups;
      for (int i = 0; i < d / group; ++i) groups.insert(beta[static_cast<size_t>(i)] / group);
      EXPECT_EQ(groups.size(), static_cast<size_t>(d / group)) << d << " in groups of " << group;
    }
  }
}

TEST(Permutation, IsConstantForAscendingEigenvalues) {
  const Matrix p = bit_reversal_permutation(Vector::LinSpaced(16, 0, 1));
  // Rounded to equal values in a file: still the P that was used.
  EXPECT_EQ(bit_reversal_permutation(Vector::Ones(16)), p);
  const auto beta = bit_reversal(16);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(p(15 - i, beta[static_cast<size_t>(i)]), 1);
  EXPECT_EQ(p.sum(), 16);
}

TEST(Permutation, SortsDescending) {
  const Matrix p = bit_reversal_permutation((Vector(4) << 3, 9, 1, 5).finished());
  // Descending: 1, 3, 0, 2; columns 0, 2, 1, 3.
  EXPECT_EQ(p(1, 0) + p(3, 2) + p(0, 1) + p(2, 3), 4);
}

}  // namespace
}  // namespace oscar
