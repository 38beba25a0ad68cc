#include "libcalib/eigen_decomposition.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "formats/error.h"

// Eigen's own solver and not LAPACK's: one code path, one thread and no vendor library, hence the same bytes
// everywhere.

namespace oscar {
namespace {

Eigen::Index largest_entry(const Matrix& vectors, Eigen::Index column) {
  Eigen::Index at = 0;
  for (Eigen::Index i = 1; i < vectors.rows(); ++i) {
    if (std::abs(vectors(i, column)) > std::abs(vectors(at, column))) at = i;
  }
  return at;
}

// Columns of one cluster of equal eigenvalues by the index of their largest entry.
void order_cluster(Matrix& vectors, Eigen::Index first, Eigen::Index last) {
  std::vector<std::pair<Eigen::Index, Eigen::Index>> order;
  for (Eigen::Index i = first; i < last; ++i) order.emplace_back(largest_entry(vectors, i), i);
  std::sort(order.begin(), order.end());
  const Matrix cluster = vectors.middleCols(first, last - first);
  for (size_t i = 0; i < order.size(); ++i) {
    vectors.col(first + static_cast<Eigen::Index>(i)) = cluster.col(order[i].second - first);
  }
}

void canonicalise(EigenDecomposition& eigen) {
  const Eigen::Index d = eigen.values.size();
  const double same = 1e-12 * eigen.values.cwiseAbs().maxCoeff();
  for (Eigen::Index first = 0; first < d;) {
    Eigen::Index last = first + 1;
    while (last < d && eigen.values[last] - eigen.values[last - 1] <= same) ++last;
    if (last - first > 1) order_cluster(eigen.vectors, first, last);
    first = last;
  }
  for (Eigen::Index j = 0; j < d; ++j) {
    if (eigen.vectors(largest_entry(eigen.vectors, j), j) < 0) eigen.vectors.col(j) *= -1;
  }
}

}  // namespace

EigenDecomposition eigen_decomposition(const Matrix& c, const std::string& what) {
  if (c.rows() != c.cols() || c.rows() == 0) {
    throw invalid("{}: expected a square matrix, got {} x {}", what, c.rows(), c.cols());
  }
  if (!c.allFinite()) throw failure("{}: the matrix has entries that are not finite", what);
  const Matrix symmetric = (c + c.transpose()) / 2;
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(symmetric);
  if (solver.info() != Eigen::Success) throw failure("{}: the eigendecomposition did not converge", what);

  EigenDecomposition eigen{solver.eigenvalues(), solver.eigenvectors()};
  canonicalise(eigen);
  const double largest = symmetric.cwiseAbs().maxCoeff();
  const Matrix& u = eigen.vectors;
  eigen.orthogonality = (u.transpose() * u - Matrix::Identity(c.rows(), c.rows())).cwiseAbs().maxCoeff();
  if (largest > 0) {
    eigen.residual = (symmetric * u - u * eigen.values.asDiagonal()).cwiseAbs().maxCoeff() / largest;
  }
  constexpr double kLimit = 1e-8;
  if (!(eigen.residual <= kLimit && eigen.orthogonality <= kLimit)) {
    throw failure(
        "{}: eigendecomposition: residual {:.1e} and orthogonality error {:.1e}, expected at most {:.0e}",
        what, eigen.residual, eigen.orthogonality, kLimit);
  }
  return eigen;
}

}  // namespace oscar
