// `uresidual` of OSCAR's released scripts: R = U_E Pi U^T, U the eigenvectors of the target, U_E those of the
// error that plain INT2 makes on rows rotated by the layer's OSCAR rotation; Pi pairs the largest sensitivity
// with the smallest error.
#include "kernels/gram.h"
#include "libcalib/composition.h"
#include "libcalib/methods/support.h"

namespace oscar::residual_rotation {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const std::string target = side == Side::K ? "qqt" : "sst-proxy";
  const LayerShape& shape = layer.sums.shape();
  const int dim = shape.dim(side);
  const std::string what = place(layer, side, -1, "uresidual");
  const EigenDecomposition sensitivity =
      eigen_decomposition(mean_of(head_targets(layer, side, target)), what);
  const Transform reference{
      .forward = compose(find_composition("r_h_pbr"), sensitivity), .inverse = {}, .mean = {}};
  const CodecInfo& int2 = find_codec("sglang-prefill");
  Matrix error = Matrix::Zero(dim, dim);
  for (int h = 0; h < shape.kv_heads; ++h) {
    const TrainingRows rows = training_rows(layer, side, h, reference, Importance::None, 0);
    std::vector<float> difference(rows.rows.size());
    int2.encode(rows.rows.data(), rows.count, dim, {})->decode(0, rows.count, difference.data());
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= rows.rows[i];
    add_gram(difference.data(), dim, nullptr, rows.count, dim, error.data());
  }
  const EigenDecomposition residual = eigen_decomposition(error, what);
  // Both ascend: the r-th smallest error goes to the r-th largest sensitivity.
  LayerFit fit;
  const Transform transform{.forward = residual.vectors * sensitivity.vectors.rowwise().reverse().transpose(),
                            .inverse = {},
                            .mean = {}};
  check_transform(fit, transform, sensitivity.values, std::max(sensitivity.residual, residual.residual),
                  what);
  fit.heads.push_back(scalar_code(options, transform, sensitivity.values));
  return fit;
}
std::string objective(Side, const MethodOptions&) {
  return "uresidual";
}

}  // namespace oscar::residual_rotation
