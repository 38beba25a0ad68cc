// oscar-dc: rotations aligned with the zero point (transforms/zero_point.h), for INT2 engines as they are.
#include "libcalib/transforms/zero_point.h"

#include <cmath>

#include "libcalib/methods/support.h"

namespace oscar::zero_point {

// What the first direction is the top eigenvector of: the mean of the rows, or all of their second moment.
static Matrix direction_moment(const Centred& rows, Centre centre) {
  const Matrix mean = rows.mean * rows.mean.transpose();
  if (centre == Centre::None) return Matrix::Zero(mean.rows(), mean.cols());
  return centre == Centre::Top ? Matrix(rows.covariance + mean) : mean;
}

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  auto targets = head_targets(layer, side, options.target);
  const int heads = layer.sums.shape().kv_heads;
  std::vector<Matrix> directions, spreads;
  for (int h = 0; h < heads; ++h) {
    const Centred rows = centred_rows(layer.sums, side, h, importance_of(options.centre));
    directions.push_back(direction_moment(rows, options.centre));
    spreads.push_back(rows.covariance + rows.mean * rows.mean.transpose());
  }
  const bool shared = options.granularity == Granularity::Layer;
  if (shared) {
    directions = {mean_of(directions)};
    spreads = {mean_of(spreads)};
    targets = {mean_of(targets)};
  }
  LayerFit fit;
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::string what = place(layer, side, shared ? -1 : static_cast<int>(i), "oscar-dc");
    const EigenDecomposition moment = eigen_decomposition(directions[i], what + ", means");
    const Vector mean =
        moment.vectors.rightCols(1).col(0) * std::sqrt(std::max(moment.values.tail(1)[0], 0.0));
    const auto aligned = zero_point_rotation(mean, targets[i], spreads[i], options.groups, what);
    const Transform transform{.forward = aligned.rotation, .inverse = {}, .mean = {}};
    check_transform(fit, transform, eigen_decomposition(targets[i], what).values, aligned.residual, what);
    fit.heads.push_back(scalar_code(options, transform, aligned.eigenvalues));
  }
  return fit;
}

std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, "dc_h", options.granularity == Granularity::Head);
}

}  // namespace oscar::zero_point
