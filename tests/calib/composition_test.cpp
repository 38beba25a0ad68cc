#include "libcalib/composition.h"

#include "libcalib/hadamard.h"
#include "libcalib/permutation.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

Matrix random_covariance(int d, uint64_t seed) {
  const auto rows = test::correlated(4 * d, 1, d, seed);
  const Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> x(rows.data(),
                                                                                                  4 * d, d);
  const Matrix wide = x.cast<double>();
  return wide.transpose() * wide / (4.0 * d);
}
double error(const Matrix& a, const Matrix& b) {
  return (a - b).norm() / b.norm();
}

TEST(Eigen, DecomposesAndOrders) {
  for (const int d : {1, 2, 5, 16, 64, 80}) {
    const Matrix c = random_covariance(d, 7);
    const auto eigen = eigen_decomposition(c, "test");
    EXPECT_LT(error(eigen.vectors * eigen.values.asDiagonal() * eigen.vectors.transpose(), c), 1e-12);
    EXPECT_LT(eigen.orthogonality, 1e-12);
    EXPECT_LT(eigen.residual, 1e-12);
    for (int i = 1; i < d; ++i) EXPECT_LE(eigen.values[i - 1], eigen.values[i]);
  }
}

TEST(Eigen, LargestEntryIsPositive) {
  const auto eigen = eigen_decomposition(random_covariance(32, 8), "test");
  for (int j = 0; j < 32; ++j) {
    Eigen::Index at = 0;
    eigen.vectors.col(j).cwiseAbs().maxCoeff(&at);
    EXPECT_GT(eigen.vectors(at, j), 0) << j;
  }
  // Two entries of one magnitude: the lower index decides.
  const auto tie = eigen_decomposition((Matrix(2, 2) << 1, -0.5, -0.5, 1).finished(), "test");
  EXPECT_GT(tie.vectors(0, 0), 0);
  EXPECT_GT(tie.vectors(0, 1), 0);
}

TEST(Eigen, EqualEigenvaluesAreOrderedByTheirLargestEntry) {
  const auto eigen = eigen_decomposition(Matrix::Identity(6, 6) * 3, "test");
  EXPECT_EQ(eigen.vectors, Matrix::Identity(6, 6));
}

TEST(Eigen, UsesTheSymmetricPart) {
  Matrix c = random_covariance(8, 9);
  const auto symmetric = eigen_decomposition(c, "test");
  Matrix skew = Matrix::Zero(8, 8);
  skew(0, 7) = 0.25;
  skew(7, 0) = -0.25;
  EXPECT_LT((eigen_decomposition(c + skew, "test").values - symmetric.values).cwiseAbs().maxCoeff(), 1e-12);
}

TEST(Eigen, NamesWhatIsNotFinite) {
  Matrix c = Matrix::Identity(4, 4);
  c(1, 2) = INFINITY;
  try {
    eigen_decomposition(c, "layer 7, k (qqt)");
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("layer 7, k (qqt)"), std::string::npos) << e.what();
  }
  EXPECT_THROW(eigen_decomposition(Matrix::Zero(2, 3), "test"), std::invalid_argument);
}

// Each product written out by column, not by the table's expressions.
TEST(Composition, AgainstIndependentConstruction) {
  const int d = 16;
  const auto eigen = eigen_decomposition(random_covariance(d, 10), "test");
  const Matrix h = hadamard(d);
  const auto beta = bit_reversal(d);
  const auto permuted =
      [&](const Matrix& m) {  // M P: column beta(i) is the column of the i-th largest eigenvalue
        Matrix out(d, d);
        for (int i = 0; i < d; ++i) out.col(beta[static_cast<size_t>(i)]) = m.col(d - 1 - i);
        return out;
      };
  const Matrix u = eigen.vectors, i = Matrix::Identity(d, d);
  const std::map<std::string_view, Matrix> expected{{"plain", u},
                                                    {"pbr", permuted(i)},
                                                    {"br", permuted(u)},
                                                    {"br_h128", permuted(u) * h},
                                                    {"r_h", u * h},
                                                    {"h_pbr", permuted(h)},
                                                    {"h_r_pbr", permuted(h * u)},
                                                    {"h_pbr_r", permuted(h) * u},
                                                    {"r_h_pbr", permuted(u * h)}};
  ASSERT_EQ(composition_table().size(), expected.size());
  for (const auto& composition : composition_table()) {
    const Matrix r = compose(composition, eigen);
    EXPECT_LT((r - expected.at(composition.name)).cwiseAbs().maxCoeff(), 1e-13) << composition.name;
    EXPECT_LT((r * r.transpose() - i).cwiseAbs().maxCoeff(), 1e-12) << composition.name;
  }
}

TEST(Composition, CovarianceComesBack) {
  for (const int d : {16, 80}) {
    const Matrix c = random_covariance(d, 11);
    const auto eigen = eigen_decomposition(c, "test");
    for (const auto& composition : composition_table()) {
      const Matrix r = compose(composition, eigen);
      if (composition.product.find('U') == std::string_view::npos) {
        EXPECT_THROW(recover_covariance(composition, r, eigen.values), std::invalid_argument)
            << composition.name;
      } else {
        EXPECT_LT(error(recover_covariance(composition, r, eigen.values), c), 1e-12) << composition.name;
      }
    }
  }
}

TEST(Composition, PlainNeedsNoHadamard) {
  const auto eigen = eigen_decomposition(random_covariance(10, 12), "test");
  EXPECT_EQ(compose(find_composition("plain"), eigen), eigen.vectors);
  EXPECT_THROW(compose(find_composition("r_h"), eigen), std::invalid_argument);
}

TEST(Composition, UnknownNameListsTheKnown) {
  try {
    find_composition("h_r");
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_EQ(
        std::string(e.what()),
        "unknown composition 'h_r'; known: r_h_pbr, plain, pbr, br, br_h128, r_h, h_pbr, h_r_pbr, h_pbr_r");
  }
}

}  // namespace
}  // namespace oscar
