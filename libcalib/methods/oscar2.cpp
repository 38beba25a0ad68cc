// The maps of OSCAR-2 that are not orthogonal, for scalar codes (docs/math.md). A key is coded as k T and the
// query reads it through T^-T; a value is coded as v T and the output goes back through T^-1.
#include "libcalib/composition.h"
#include "libcalib/methods/support.h"
#include "libcalib/transforms/klt.h"

namespace oscar {

// T = M^1/2 E H P: E the eigenvectors of M^1/2 target M^1/2.
static LayerFit fit_in_metric(const LayerStatistics& layer, Side side, const MethodOptions& options,
                              const std::vector<Matrix>& metrics, const std::vector<Matrix>& moments,
                              std::string_view name) {
  const auto& composition = find_composition(options.composition);
  LayerFit fit;
  for (size_t h = 0; h < metrics.size(); ++h) {
    const std::string what = place(layer, side, static_cast<int>(h), name);
    const Matrix root = matrix_power(metrics[h], 0.5, kMetricFloor, what),
                 inverse = matrix_power(metrics[h], -0.5, kMetricFloor, what);
    const EigenDecomposition eigen = eigen_decomposition(root * moments[h] * root, what);
    const Matrix rotation = compose(composition, eigen);
    const Transform transform{
        .forward = root * rotation, .inverse = rotation.transpose() * inverse, .mean = {}};
    check_transform(fit, transform, eigen.values, eigen.residual, what);
    fit.heads.push_back(scalar_code(options, transform, eigen.values));
  }
  return fit;
}

static std::vector<Matrix> key_moments(const LayerStatistics& layer, const MethodOptions&) {
  return head_targets(layer, Side::K, "ktk");
}

namespace flattened {

// The metric is the queries' own: a squared error of k T is the error of the logits.
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_in_metric(layer, side, options, head_targets(layer, side, options.target),
                       key_moments(layer, options), "flat");
}
std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, "flat_" + options.composition, true);
}

}  // namespace flattened

namespace stretched {

// With one step for all channels, the loss of a map T, X = T T^T, is tr(C X) tr(M X^-1): the noise follows
// the energy of k T, the logits read it through T^-1. Its minimum is X C X = M up to a factor: X* = C^-1 # M,
// the geometric mean.
static Matrix least_noise(const Matrix& c, const Matrix& m, const std::string& what) {
  constexpr double kFloor = 1e-10;
  const Matrix root = matrix_power(c, 0.5, kFloor, what), inverse = matrix_power(c, -0.5, kFloor, what);
  return inverse * matrix_power(root * m * root, 0.5, kFloor, what) * inverse;
}

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const auto moments = key_moments(layer, options), targets = head_targets(layer, side, options.target);
  std::vector<Matrix> metrics;
  for (size_t h = 0; h < targets.size(); ++h)
    metrics.push_back(
        least_noise(moments[h], targets[h], place(layer, side, static_cast<int>(h), "stretch")));
  return fit_in_metric(layer, side, options, metrics, moments, "stretch");
}
std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, "stretch_" + options.composition, true);
}

}  // namespace stretched

namespace output_aware {

// The metric is G = sum_j W_O,j^T W_O,j: an error of v as the residual stream sees it.
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_in_metric(layer, side, options, layer.value_metric, head_targets(layer, side, options.target),
                       "outaware");
}
std::string objective(Side, const MethodOptions& options) {
  return objective_name(options.target, "outaware_" + options.composition, true);
}

}  // namespace output_aware
}  // namespace oscar
