// oscar-dc: rotations aligned with the zero point (transforms/zero_point.h), for INT2 engines as they are.
#include "libcalib/transforms/zero_point.h"

#include <cmath>

#include "libcalib/methods/support.h"

namespace oscar::zero_point {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const auto targets = head_targets(layer, side, options.target);
  const int heads = layer.sums.shape().kv_heads;
  std::vector<Vector> means;
  std::vector<Matrix> spreads;
  for (int h = 0; h < heads; ++h) {
    const Centred rows = centred_rows(layer.sums, side, h, options.centre == Centre::Weighted);
    means.push_back(options.centre == Centre::None ? Vector::Zero(rows.mean.size()) : rows.mean);
    spreads.push_back(rows.covariance + rows.mean * rows.mean.transpose());
  }
  LayerFit fit;
  const auto add = [&](const Vector& mean, const Matrix& target, const Matrix& spread,
                       const std::string& what) {
    const auto aligned = zero_point_rotation(mean, target, spread, options.groups, what);
    const Transform transform{.forward = aligned.rotation, .inverse = {}, .mean = {}};
    check_transform(fit, transform, eigen_decomposition(target, what).values, aligned.residual, what);
    fit.heads.push_back(scalar_code(options, transform, aligned.eigenvalues));
  };
  if (options.granularity == Granularity::Head) {
    for (int h = 0; h < heads; ++h) {
      const auto i = static_cast<size_t>(h);
      add(means[i], targets[i], spreads[i], place(layer, side, h, "oscar-dc"));
    }
    return fit;
  }
  // One rotation a layer: the direction that the heads' means share most.
  const std::string what = place(layer, side, -1, "oscar-dc");
  Matrix moment = Matrix::Zero(means[0].size(), means[0].size());
  for (const Vector& mean : means) moment += mean * mean.transpose() / heads;
  const EigenDecomposition shared = eigen_decomposition(moment, what + ", means");
  const double power = std::max(shared.values.tail(1)[0], 0.0);
  add(shared.vectors.rightCols(1).col(0) * std::sqrt(power), mean_of(targets), mean_of(spreads), what);
  return fit;
}

std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, "dc_h", options.granularity == Granularity::Head);
}

}  // namespace oscar::zero_point
