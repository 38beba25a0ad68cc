#include "libcalib/transforms/klt.h"

#include <cmath>

#include "libcalib/eigen_decomposition.h"

namespace oscar {

// The identity where there is nothing to scale by (a head that no query reads, keys that are all zero): any metric
// measures zeros.
static Matrix power_of(const EigenDecomposition& eigen, double exponent, double floor) {
  const double largest = eigen.values.tail(1)[0];
  if (!(largest > 0)) return Matrix::Identity(eigen.vectors.rows(), eigen.vectors.cols());
  const double least = std::max(largest * floor, 1e-300);
  const Vector powers = eigen.values.cwiseMax(least).array().pow(exponent);
  return eigen.vectors * powers.asDiagonal() * eigen.vectors.transpose();
}

Matrix matrix_power(const Matrix& m, double exponent, double floor, const std::string& what) {
  return power_of(eigen_decomposition(m, what), exponent, floor);
}

std::vector<int> partition_order(int dim, int size, Partition partition) {
  const int groups = dim / size;
  std::vector<int> order(static_cast<size_t>(dim));
  for (int column = 0; column < dim; ++column) {
    const int group = column / size, place = column % size;
    int rank = column;
    if (partition == Partition::Volume) rank = place * groups + group;
    if (partition == Partition::Snake) rank = place * groups + (place % 2 == 0 ? group : groups - 1 - group);
    if (partition == Partition::Anti) {
      const int high = (size + 1) / 2, low = size - high;  // from the top, from the bottom
      rank = place < high ? group * high + place : dim - (group + 1) * low + (place - high);
    }
    order[static_cast<size_t>(column)] = rank;
  }
  return order;
}

double volume_spread(const Vector& variances, int size) {
  double low = INFINITY, high = -INFINITY;
  for (Eigen::Index first = 0; first < variances.size(); first += size) {
    const double volume = variances.segment(first, size).array().max(1e-300).log().mean();
    low = std::min(low, volume);
    high = std::max(high, volume);
  }
  return std::exp(high - low);
}

Klt klt(const Matrix& metric, const Centred& rows, Partition partition, int size, const std::string& what) {
  const EigenDecomposition m = eigen_decomposition(metric, what + ", metric");
  const Matrix root = power_of(m, 0.5, kMetricFloor), inverse_root = power_of(m, -0.5, kMetricFloor);
  const EigenDecomposition e =
      eigen_decomposition(root * rows.covariance * root, what + ", covariance in the metric");
  const auto order = partition_order(static_cast<int>(metric.rows()), size, partition);
  const Eigen::Index d = metric.rows();
  Klt result;
  Matrix basis(d, d);
  result.variances.resize(d);
  for (Eigen::Index c = 0; c < d; ++c) {
    const Eigen::Index from = d - 1 - order[static_cast<size_t>(c)];  // ascending
    basis.col(c) = e.vectors.col(from);
    result.variances[c] = std::max(e.values[from], 0.0);
  }
  result.transform = {
      .forward = root * basis, .inverse = basis.transpose() * inverse_root, .mean = rows.mean};
  result.eigenvalues = e.values;
  result.residual = std::max(m.residual, e.residual);
  return result;
}

}  // namespace oscar
