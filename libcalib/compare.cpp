#include "libcalib/compare.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/error.h"
#include "libcalib/composition.h"
#include "libcalib/hadamard.h"
#include "libcalib/permutation.h"

namespace oscar {
namespace {

struct Parts {
  const CompositionInfo* composition = nullptr;  // nullptr: nothing can be recovered from the file
  Matrix u, h, p;
};

Parts take_apart(const RotationSet& set, const Matrix& r, const Vector* values) {
  Parts parts;
  if (!values || set.composition.empty()) return parts;
  const CompositionInfo& composition = find_composition(set.composition);
  parts.h = composition.needs_h ? hadamard(static_cast<int>(r.rows())) : Matrix();
  parts.p = bit_reversal_permutation(*values);
  parts.u = composition.recover(r, parts.h, parts.p);
  if (parts.u.size() > 0) parts.composition = &composition;
  return parts;
}

// Columns of `b` with the sign that agrees with `a`.
Matrix with_signs_of(const Matrix& a, Matrix b) {
  for (Eigen::Index j = 0; j < b.cols(); ++j) {
    if (a.col(j).dot(b.col(j)) < 0) b.col(j) *= -1;
  }
  return b;
}

// Largest sine between the spaces of the top k columns (ascending order: the last k) of two orthogonal bases.
double largest_sine(const Matrix& a, const Matrix& b, Eigen::Index k) {
  const auto qa = a.rightCols(k), qb = b.rightCols(k);
  const Matrix rest = qa - qb * (qb.transpose() * qa);
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(Matrix(rest.transpose() * rest), Eigen::EigenvaluesOnly);
  return std::sqrt(std::max(0.0, solver.eigenvalues()[k - 1]));
}

Eigen::Index widest_gap(const Vector& ascending) {
  Eigen::Index best = 1;
  for (Eigen::Index k = 1; k < ascending.size(); ++k) {
    const auto gap = [&](Eigen::Index top) {
      return ascending[ascending.size() - top] - ascending[ascending.size() - top - 1];
    };
    if (gap(k) > gap(best)) best = k;
  }
  return best;
}

void compare_head(const RotationSet& a, const RotationSet& b, int head, const LayerRotation& la,
                  const LayerRotation& lb, LayerDifference& worst) {
  const auto values = [&](const LayerRotation& l) {
    return l.eigenvalues.empty() ? nullptr
                                 : &l.eigenvalues[l.eigenvalues.size() == 1 ? 0 : static_cast<size_t>(head)];
  };
  const Matrix &ra = la.of_head(head), &rb = lb.of_head(head);
  const Vector *va = values(la), *vb = values(lb);
  const Parts pa = take_apart(a, ra, va), pb = take_apart(b, rb, vb);
  if (!pa.composition || !pb.composition) {
    worst.covariance = std::numeric_limits<double>::quiet_NaN();
    worst.rotation = std::max(worst.rotation, (ra - with_signs_of(ra, rb)).cwiseAbs().maxCoeff());
    return;
  }
  const Matrix ca = pa.u * va->asDiagonal() * pa.u.transpose(),
               cb = pb.u * vb->asDiagonal() * pb.u.transpose();
  worst.covariance = std::max(worst.covariance, (ca - cb).norm() / std::max(ca.norm(), 1e-300));
  if (va->size() > 1) worst.subspace = std::max(worst.subspace, largest_sine(pa.u, pb.u, widest_gap(*va)));
  const Matrix rebuilt = pb.composition->compose(with_signs_of(pa.u, pb.u), pb.h, pb.p);
  worst.rotation = std::max(worst.rotation, (ra - rebuilt).cwiseAbs().maxCoeff());
}

}  // namespace

bool Comparison::equal(double tolerance) const {
  if (!same_form || !only_a.empty() || !only_b.empty()) return false;
  return std::all_of(layers.begin(), layers.end(), [&](const LayerDifference& layer) {
    return (std::isnan(layer.covariance) ? layer.rotation : layer.covariance) <= tolerance;
  });
}

Comparison compare(const RotationSet& a, const RotationSet& b) {
  if (a.side != b.side) {
    throw invalid("rotations of {} cannot be compared with rotations of {}", side_name(a.side),
                  side_name(b.side));
  }
  Comparison result;
  const auto remark = [&](const char* what, const std::string& x, const std::string& y) {
    if (x != y) result.remarks.push_back(fmt::format("{}: {} in the first, {} in the second", what, x, y));
  };
  const auto grouping = [](const RotationSet& s) {
    return std::string(s.per_head ? "one per KV head" : "one per layer");
  };
  remark("objective", a.objective, b.objective);
  remark("composition", a.composition, b.composition);
  remark("grouping", grouping(a), grouping(b));
  result.same_form = a.composition == b.composition;

  for (const auto& [id, layer] : a.layers) {
    const auto other = b.layers.find(id);
    if (other == b.layers.end()) {
      result.only_a.push_back(id);
      continue;
    }
    const LayerRotation& twin = other->second;
    if (layer.rotation.at(0).rows() != twin.rotation.at(0).rows()) {
      throw invalid("layer {}: head dim {} in the first, {} in the second", id, layer.rotation[0].rows(),
                    twin.rotation[0].rows());
    }
    const size_t heads = std::max(layer.rotation.size(), twin.rotation.size());
    if (std::min(layer.rotation.size(), twin.rotation.size()) > 1 &&
        layer.rotation.size() != twin.rotation.size()) {
      throw invalid("layer {}: {} KV heads in the first, {} in the second", id, layer.rotation.size(),
                    twin.rotation.size());
    }
    LayerDifference worst;
    worst.layer = id;
    for (size_t h = 0; h < heads; ++h) compare_head(a, b, static_cast<int>(h), layer, twin, worst);
    result.layers.push_back(worst);
  }
  for (const auto& [id, layer] : b.layers) {
    if (!a.layers.contains(id)) result.only_b.push_back(id);
  }
  return result;
}

}  // namespace oscar
