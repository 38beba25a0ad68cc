#include "libcalib/rotation.h"

#include "formats/error.h"

namespace oscar {

double orthogonality_error(const Matrix& rotation) {
  return (rotation * rotation.transpose() - Matrix::Identity(rotation.rows(), rotation.rows()))
      .cwiseAbs()
      .maxCoeff();
}

void check(const RotationSet& set, const std::string& where) {
  constexpr double kLimit = 1e-4, kInverseLimit = 1e-3;
  if (set.layers.empty()) throw failure("{}: no layers", where);
  for (const auto& [id, layer] : set.layers) {
    const size_t count = layer.rotation.size();
    if (count == 0) throw failure("{}: layer {}: no rotation", where, id);
    if (!set.per_head && count != 1) {
      throw failure("{}: layer {}: expected one rotation shared by its heads, found {}", where, id, count);
    }
    if (!layer.eigenvalues.empty() && layer.eigenvalues.size() != count) {
      throw failure("{}: layer {}: expected eigenvalues for {} rotations, found {}", where, id, count,
                    layer.eigenvalues.size());
    }
    if (!layer.inverse.empty() && layer.inverse.size() != count)
      throw failure("{}: layer {}: expected {} inverses, found {}", where, id, count, layer.inverse.size());
    const Eigen::Index d = layer.rotation[0].rows();
    for (const Vector& mean : layer.means) {
      if (mean.size() != d || !mean.allFinite())
        throw failure("{}: layer {}: expected means of {} finite numbers", where, id, d);
    }
    if (set.per_head && layer.means.size() > 1 && layer.means.size() != count)
      throw failure("{}: layer {}: {} rotations and {} means", where, id, count, layer.means.size());
    for (size_t h = 0; h < count; ++h) {
      const std::string place = set.per_head ? fmt::format("{}: layer {}, head {}", where, id, h)
                                             : fmt::format("{}: layer {}", where, id);
      const Matrix& r = layer.rotation[h];
      if (r.rows() != d || r.cols() != d || d == 0) {
        throw failure("{}: expected a rotation [{}, {}], found [{}, {}]", place, d, d, r.rows(), r.cols());
      }
      if (!r.allFinite()) throw failure("{}: the rotation has entries that are not finite", place);
      if (!layer.inverse.empty()) {
        const Matrix& inverse = layer.inverse.at(h);
        if (inverse.rows() != d || inverse.cols() != d || !inverse.allFinite())
          throw failure("{}: expected an inverse [{}, {}] of finite numbers", place, d, d);
        const double error = (r * inverse - Matrix::Identity(d, d)).cwiseAbs().maxCoeff();
        if (!(error <= kInverseLimit)) {
          throw failure("{}: map times inverse is off the identity by {:.2e}, expected at most {:.0e}", place,
                        error, kInverseLimit);
        }
      } else if (const double error = orthogonality_error(r); !(error <= kLimit)) {
        throw failure("{}: not orthogonal: max |R R^T - I| is {:.2e}, expected at most {:.0e}", place, error,
                      kLimit);
      }
      if (layer.eigenvalues.empty()) continue;
      const Vector& values = layer.eigenvalues[h];
      if (values.size() != d) throw failure("{}: expected {} eigenvalues, found {}", place, d, values.size());
      if (!values.allFinite()) throw failure("{}: the eigenvalues are not all finite", place);
      for (Eigen::Index i = 1; i < d; ++i) {
        if (values[i] < values[i - 1]) {
          throw failure("{}: eigenvalues must ascend: {} at {} after {}", place, values[i], i, values[i - 1]);
        }
      }
    }
  }
}

}  // namespace oscar
