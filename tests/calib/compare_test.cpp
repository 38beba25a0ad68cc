#include "libcalib/compare.h"

#include "libcalib/composition.h"
#include "libcalib/eigen_decomposition.h"

#include <Eigen/QR>

#include "libcalib/fit.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

RotationSet set_of(const EigenDecomposition& eigen, const std::string& composition = "r_h_pbr") {
  RotationSet set;
  set.objective = "qqt_" + composition;
  set.composition = composition;
  set.layers[5].rotation = {compose(find_composition(composition), eigen)};
  set.layers[5].eigenvalues = {eigen.values};
  return set;
}
EigenDecomposition spectrum(std::vector<double> values) {
  const auto d = static_cast<Eigen::Index>(values.size());
  const auto x = test::normal(static_cast<size_t>(d * d), 3);
  const Eigen::Map<const Eigen::MatrixXf> a(x.data(), d, d);
  const Matrix basis = Matrix(a.cast<double>()).householderQr().householderQ();
  return {Eigen::Map<Vector>(values.data(), d), basis};
}
const std::vector<double> kValues{0.5, 0.5, 0.5, 1, 2, 3, 4, 9};

TEST(Compare, SignsDoNotMatter) {
  auto eigen = spectrum(kValues);
  const RotationSet a = set_of(eigen);
  eigen.vectors.col(2) *= -1;
  eigen.vectors.col(7) *= -1;
  const auto result = compare(a, set_of(eigen));
  EXPECT_TRUE(result.equal(1e-12));
  EXPECT_LT(result.layers.at(0).rotation, 1e-12);
  EXPECT_LT(result.layers.at(0).subspace, 1e-7);
}

TEST(Compare, RotationsInsideADegenerateSubspaceDoNotMatter) {
  auto eigen = spectrum(kValues);
  const RotationSet a = set_of(eigen);
  const double c = std::cos(0.7), s = std::sin(0.7);
  const Matrix two = eigen.vectors.leftCols(2);
  eigen.vectors.col(0) = c * two.col(0) + s * two.col(1);
  eigen.vectors.col(1) = -s * two.col(0) + c * two.col(1);
  const auto result = compare(a, set_of(eigen));
  EXPECT_TRUE(result.equal(1e-12));
  EXPECT_GT(result.layers.at(0).rotation, 0.01) << "the matrices themselves differ";
}

TEST(Compare, AnotherDirectionDoes) {
  auto eigen = spectrum(kValues);
  const RotationSet a = set_of(eigen);
  const double c = std::cos(0.2), s = std::sin(0.2);
  const Matrix two = eigen.vectors.rightCols(2);
  eigen.vectors.col(6) = c * two.col(0) + s * two.col(1);
  eigen.vectors.col(7) = -s * two.col(0) + c * two.col(1);
  const auto result = compare(a, set_of(eigen));
  EXPECT_FALSE(result.equal(1e-3));
  EXPECT_NEAR(result.layers.at(0).subspace, s, 1e-9) << "the widest gap is above the largest eigenvalue";
}

TEST(Compare, EqualCovariancesOfOtherCompositionsAreNotEqualFiles) {
  const auto eigen = spectrum(kValues);
  const auto result = compare(set_of(eigen), set_of(eigen, "r_h"));
  EXPECT_FALSE(result.equal(1));
  EXPECT_LT(result.layers.at(0).covariance, 1e-12);
  EXPECT_EQ(result.remarks.size(), 2u);
}

TEST(Compare, LayersOfOneFileOnly) {
  const auto eigen = spectrum(kValues);
  RotationSet a = set_of(eigen), b = a;
  b.layers[9] = b.layers[5];
  a.layers[1] = a.layers[5];
  const auto result = compare(a, b);
  EXPECT_EQ(result.only_a, std::vector<int>{1});
  EXPECT_EQ(result.only_b, std::vector<int>{9});
  EXPECT_FALSE(result.equal(1));
}

TEST(Compare, SharedWithPerHead) {
  const auto eigen = spectrum(kValues);
  const RotationSet a = set_of(eigen);
  RotationSet b = a;
  b.per_head = true;
  b.layers[5].rotation.push_back(b.layers[5].rotation[0]);
  b.layers[5].eigenvalues.push_back(b.layers[5].eigenvalues[0]);
  EXPECT_TRUE(compare(a, b).equal(1e-12)) << "every head has the same";
  b.layers[5].eigenvalues[1] *= 2;
  EXPECT_FALSE(compare(a, b).equal(1e-3));
}

TEST(Compare, WithoutEigenvaluesTheMatricesDecide) {
  RotationSet a = set_of(spectrum(kValues));
  a.composition = a.objective = "";
  RotationSet b = a;
  EXPECT_TRUE(compare(a, b).equal(0));
  EXPECT_TRUE(std::isnan(compare(a, b).layers.at(0).covariance));
  b.layers[5].rotation[0] = Matrix::Identity(8, 8);
  EXPECT_FALSE(compare(a, b).equal(1e-3));
}

TEST(Compare, RefusesWhatCannotBeCompared) {
  const RotationSet a = set_of(spectrum(kValues));
  RotationSet v = a;
  v.side = Side::V;
  EXPECT_THROW(compare(a, v), std::invalid_argument);
  EXPECT_THROW(compare(a, set_of(spectrum({1, 2, 3, 4}))), std::invalid_argument);
}

}  // namespace
}  // namespace oscar
