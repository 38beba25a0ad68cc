#include "libcalib/transforms/zero_point.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/eigen_decomposition.h"
#include "libcalib/hadamard.h"

namespace oscar {

// (I - A A^T) m (I - A A^T), columns of A orthonormal.
static Matrix without(const Matrix& m, const Matrix& a) {
  const Matrix rest = Matrix::Identity(m.rows(), m.cols()) - a * a.transpose();
  return rest * m * rest;
}

// The `count` top eigenvectors of m outside of the span of `taken`, descending. They are made orthogonal to
// it once more: a top eigenvalue near the rounding of the removed ones must not let them back in.
static Matrix top_outside(const Matrix& m, const Matrix& taken, Eigen::Index count, Vector* values,
                          double& residual, const std::string& what) {
  // A constant above everything keeps the removed directions apart from the rest, at the bottom.
  const Matrix inside = without(m, taken);
  const double low = inside.cwiseAbs().maxCoeff() + 1;
  const EigenDecomposition eigen = eigen_decomposition(inside - low * (taken * taken.transpose()), what);
  residual = std::max(residual, eigen.residual);
  if (values) *values = eigen.values;
  return eigen.vectors.rightCols(count).rowwise().reverse();
}

ZeroPointRotation zero_point_rotation(const Vector& mean, const Matrix& target, const Matrix& spread,
                                      int groups, const std::string& what) {
  const Eigen::Index d = target.rows();
  if (groups < 1 || d % groups != 0)
    throw invalid("{}: {} groups do not divide the head dim {}", what, groups, d);
  const Matrix h = hadamard(static_cast<int>(d / groups)), hg = hadamard(groups);
  ZeroPointRotation result;
  Matrix basis(d, d);  // columns: first those on group-constant rows
  basis.col(0) = mean.norm() > 1e-12 * std::sqrt(std::max(spread.trace(), 0.0)) && mean.norm() > 0
                     ? Vector(mean.normalized())
                     : Vector(eigen_decomposition(target, what).vectors.rightCols(1));
  if (groups > 1) {
    basis.middleCols(1, groups - 1) =
        top_outside(spread, basis.leftCols(1), groups - 1, nullptr, result.residual, what);
  }
  Vector values;
  basis.rightCols(d - groups) =
      top_outside(target, basis.leftCols(groups), d - groups, &values, result.residual, what);
  values.head(groups).setZero();
  std::sort(values.begin(), values.end());
  result.eigenvalues = values;

  // Row (g, i) of H_G (x) H_(D/G) is constant on each group where i = 0.
  const Eigen::Index size = d / groups;
  Eigen::Index next = groups;
  result.rotation = Matrix::Zero(d, d);
  for (Eigen::Index i = 0; i < size; ++i) {
    for (Eigen::Index g = 0; g < groups; ++g) {
      const Vector direction = basis.col(i == 0 ? g : next++);
      Vector row(d);
      for (Eigen::Index to = 0; to < groups; ++to)
        row.segment(to * size, size) = hg(g, to) * h.row(i).transpose();
      result.rotation += direction * row.transpose();
    }
  }
  return result;
}

}  // namespace oscar
