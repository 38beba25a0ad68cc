// The KLT in a metric, the order of its columns, and rotations aligned with the zero point.
#include <Eigen/QR>
#include <set>

#include "libcalib/composition.h"
#include "libcalib/eigen_decomposition.h"
#include "libcalib/transforms/klt.h"
#include "libcalib/transforms/zero_point.h"
#include "tests/calib/codec_support.h"
#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

constexpr Partition kPartitions[] = {Partition::Volume, Partition::Snake, Partition::Contiguous,
                                     Partition::Anti};

Matrix gaussian(Eigen::Index rows, Eigen::Index columns, uint64_t seed) {
  const auto values = normal(static_cast<size_t>(rows * columns), seed);
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
             values.data(), rows, columns)
      .cast<double>();
}
// Positive definite, with eigenvalues over `decades`.
Matrix definite(Eigen::Index d, uint64_t seed, double decades) {
  const Matrix q = Eigen::HouseholderQR<Matrix>(gaussian(d, d, seed)).householderQ();
  const Vector values = Vector::LinSpaced(d, 0, -decades).unaryExpr([](double x) { return std::pow(10, x); });
  return q * values.asDiagonal() * q.transpose();
}
double off_identity(const Matrix& m) {
  return (m - Matrix::Identity(m.rows(), m.cols())).cwiseAbs().maxCoeff();
}

TEST(Klt, SquaredErrorsAreThoseOfTheMetric) {
  for (const Partition partition : kPartitions) {
    const Matrix m = definite(24, 1, 4), c = definite(24, 2, 3);
    const Klt basis = klt(m, {gaussian(24, 1, 3), c}, partition, 4, "test");
    const Matrix& f = basis.transform.forward;
    EXPECT_LT(off_identity(f * basis.transform.inverse), 1e-10);
    EXPECT_EQ(basis.transform.mean, Vector(gaussian(24, 1, 3)));
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const Matrix error = gaussian(1, 24, 10 + seed);
      const double in_metric = (error * m * error.transpose())(0, 0);
      EXPECT_NEAR((error * f).squaredNorm(), in_metric, 1e-12 * in_metric);
    }
  }
}

TEST(Klt, ChannelsAreUncorrelatedWithTheStatedVariances) {
  const Matrix m = definite(24, 1, 2), c = definite(24, 2, 2);
  for (const Partition partition : kPartitions) {
    const Klt basis = klt(m, {Vector::Zero(24), c}, partition, 4, "test");
    const Matrix moment = basis.transform.forward.transpose() * c * basis.transform.forward;
    EXPECT_LT((moment - Matrix(basis.variances.asDiagonal())).cwiseAbs().maxCoeff(),
              1e-12 * basis.variances.maxCoeff());
    Vector sorted = basis.variances;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_LT((sorted - basis.eigenvalues).cwiseAbs().maxCoeff(), 1e-14 * sorted.maxCoeff());
    const auto order = partition_order(24, 4, partition);
    for (size_t c1 = 0; c1 < order.size(); ++c1)
      EXPECT_EQ(basis.variances[static_cast<Eigen::Index>(c1)], basis.eigenvalues[23 - order[c1]]);
  }
}

TEST(Klt, DeficientMetricsGiveInvertibleMaps) {
  Matrix m = Matrix::Zero(16, 16);
  m.topLeftCorner(5, 5) = definite(5, 4, 1);
  const Klt basis = klt(m, {Vector::Zero(16), definite(16, 5, 1)}, Partition::Snake, 4, "test");
  EXPECT_TRUE(basis.transform.forward.allFinite());
  EXPECT_LT(off_identity(basis.transform.forward * basis.transform.inverse), 1e-8);
}

TEST(Klt, LemmaOneAfterUH) {
  for (const int d : {16, 96, 128}) {
    const Matrix c = definite(d, 6, 3);
    const Matrix r = compose(find_composition("r_h"), eigen_decomposition(c, "test"));
    const Vector diagonal = (r.transpose() * c * r).diagonal();
    EXPECT_NEAR(diagonal.maxCoeff() / diagonal.mean(), 1, 1e-12);
    EXPECT_NEAR(diagonal.minCoeff() / diagonal.mean(), 1, 1e-12);
  }
}

TEST(Partition, OrdersArePermutations) {
  for (const Partition partition : kPartitions) {
    for (const int size : {1, 2, 3, 4, 5, 8, 16, 64}) {
      for (const int groups : {1, 2, 3, 5, 16}) {
        const auto order = partition_order(size * groups, size, partition);
        const std::set<int> ranks(order.begin(), order.end());
        EXPECT_EQ(static_cast<int>(ranks.size()), size * groups);
        EXPECT_EQ(*ranks.begin(), 0);
        EXPECT_EQ(*ranks.rbegin(), size * groups - 1);
      }
    }
  }
}

TEST(Partition, MembersOfAGroup) {
  using Order = std::vector<int>;
  EXPECT_EQ(partition_order(6, 2, Partition::Contiguous), (Order{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(partition_order(6, 2, Partition::Volume), (Order{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(partition_order(6, 2, Partition::Snake), (Order{0, 5, 1, 4, 2, 3}));
  EXPECT_EQ(partition_order(8, 4, Partition::Anti), (Order{0, 1, 6, 7, 2, 3, 4, 5}));
}

TEST(Partition, VolumesOfAnExponentialSpectrum) {
  const auto spread = [](int dim, int size, Partition partition) {
    const auto order = partition_order(dim, size, partition);
    Vector variances(dim);
    for (int c = 0; c < dim; ++c) variances[c] = std::exp(-0.1 * order[static_cast<size_t>(c)]);
    return volume_spread(variances, size);
  };
  for (const auto& [dim, size] : {std::pair{64, 4}, {64, 8}, {60, 3}, {60, 5}, {128, 2}}) {
    const double snake = spread(dim, size, Partition::Snake), volume = spread(dim, size, Partition::Volume),
                 contiguous = spread(dim, size, Partition::Contiguous);
    EXPECT_LE(snake, volume);
    EXPECT_LT(volume, contiguous);
    // Every second round undoes the one before.
    EXPECT_NEAR(snake, size % 2 == 0 ? 1 : std::exp(0.1 / size * (dim / size - 1)), 1e-9);
    EXPECT_NEAR(volume, std::exp(0.1 * (dim / size - 1)), 1e-9);
    EXPECT_NEAR(contiguous, std::exp(0.1 * (dim - size)), 1e-9 * contiguous);
  }
}

// x R, whose groups of channels must be constant.
void expect_constant_groups(const Vector& x, const Matrix& rotation, int groups) {
  const Vector y = rotation.transpose() * x;
  const auto size = y.size() / groups;
  for (int g = 0; g < groups; ++g) {
    const auto group = y.segment(g * size, size);
    EXPECT_LT(group.maxCoeff() - group.minCoeff(), 1e-10 * x.norm());
  }
}

TEST(ZeroPoint, DirectionsAreConstantOnTheGroups) {
  for (const int d : {16, 64, 96, 128}) {
    for (const int groups : {1, 2, 4}) {
      const Vector mean = 3 * gaussian(d, 1, 7);
      const Matrix target = definite(d, 8, 3), spread = definite(d, 9, 2) + mean * mean.transpose();
      const auto aligned = zero_point_rotation(mean, target, spread, groups, "test");
      EXPECT_LT(off_identity(aligned.rotation * aligned.rotation.transpose()), 1e-10) << d << ' ' << groups;
      EXPECT_LT(aligned.residual, 1e-8);
      ASSERT_EQ(aligned.eigenvalues.size(), d);
      EXPECT_TRUE(std::is_sorted(aligned.eigenvalues.begin(), aligned.eigenvalues.end()));
      // The mean: on all channels alike.
      const Vector y = aligned.rotation.transpose() * mean;
      EXPECT_NEAR(y.minCoeff(), mean.norm() / std::sqrt(d), 1e-10 * mean.norm());
      EXPECT_NEAR(y.maxCoeff(), mean.norm() / std::sqrt(d), 1e-10 * mean.norm());
      // And what of the rows' second moment is largest besides.
      const Vector u = mean.normalized();
      const Matrix rest = Matrix::Identity(d, d) - u * u.transpose();
      const Matrix top = eigen_decomposition(rest * spread * rest, "test").vectors.rightCols(groups - 1);
      for (Eigen::Index i = 0; i < top.cols(); ++i)
        expect_constant_groups(2 * mean + top.col(i), aligned.rotation, groups);
    }
  }
  EXPECT_THROW(zero_point_rotation(Vector::Ones(16), definite(16, 1, 1), definite(16, 1, 1), 3, "test"),
               std::invalid_argument);
}

TEST(ZeroPoint, AMeanOfZeroTakesTheTargetsTopDirection) {
  const Matrix target = definite(32, 8, 3);
  const auto eigen = eigen_decomposition(target, "test");
  for (const int groups : {1, 2}) {
    const auto aligned = zero_point_rotation(Vector::Zero(32), target, definite(32, 9, 1), groups, "test");
    EXPECT_LT(off_identity(aligned.rotation * aligned.rotation.transpose()), 1e-10);
    expect_constant_groups(eigen.vectors.rightCols(1).col(0), aligned.rotation, 1);
  }
}

double int2_error(const Matrix& rows, const Matrix& rotation, int groups) {
  const Matrix rotated = rows * rotation;
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> floats = rotated.cast<float>();
  const std::vector<float> values(floats.data(), floats.data() + floats.size());
  return relative_error(decoded(find_codec("sglang-prefill"), values, static_cast<int>(rows.cols()),
                                {.groups = groups, .clip = groups > 1 ? 1.0 : 0.0}),
                        values);
}

TEST(ZeroPoint, RowsNearTheirMeanLoseLittle) {
  for (const int d : {64, 128}) {
    const Vector mean = 5 * gaussian(d, 1, 7);
    const Matrix rows = mean.transpose().replicate(200, 1) + 0.05 * gaussian(200, d, 8);
    const Matrix target = definite(d, 9, 2), spread = rows.transpose() * rows / 200.0;
    const Matrix uh = compose(find_composition("r_h_pbr"), eigen_decomposition(target, "test"));
    for (const int groups : {1, 4}) {
      const auto aligned = zero_point_rotation(mean, target, spread, groups, "test");
      EXPECT_LT(int2_error(rows, aligned.rotation, groups), 0.1 * int2_error(rows, uh, groups));
    }
  }
}

TEST(ZeroPoint, OneRotationForALayer) {
  const FitResult layer = fitted("oscar-dc:granularity=layer"), heads = fitted("oscar-dc");
  for (const Side side : {Side::K, Side::V}) {
    EXPECT_EQ(side_of(layer.codes, side).layers.at(2).size(), 1u);
    EXPECT_EQ(side_of(heads.codes, side).layers.at(2).size(), 2u);
  }
  // The heads' means: what they share is constant, each for itself only where it has a rotation of its own.
  for (int h = 0; h < 2; ++h) {
    const Vector mean = centred_rows(method_layers().at(2).sums, Side::K, h, Importance::Attention).mean;
    expect_constant_groups(mean, heads.codes.k.of(2, h).transform.forward, 1);
  }
}

}  // namespace
}  // namespace oscar::test
