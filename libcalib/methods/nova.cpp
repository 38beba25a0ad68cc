// NOVA-KV's keys, as vector codes and as scalar INT2: the KLT in the metric of the queries, all tokens alike.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar {

namespace klt_vector {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const LayerShape& shape = layer.sums.shape();
  const Shapes shapes = uniform_shapes(shape.dim(side), options.shape);
  const auto targets = head_targets(layer, side, "qqt");
  LayerFit fit;
  for (int h = 0; h < shape.kv_heads; ++h) {
    const std::string what = place(layer, side, h, "nova");
    // NOVA-KV sums over the query heads that share the KV head, where targets are means.
    const Klt basis =
        klt(targets[static_cast<size_t>(h)] * shape.group(),
            centred_rows(layer.sums, side, h, Importance::None), options.partition, options.shape.size, what);
    check_transform(fit, basis.transform, basis.eigenvalues, basis.residual, what);
    fit.check.volume_spread =
        std::max(fit.check.volume_spread, volume_spread(basis.variances, options.shape.size));
    auto rows = training_rows(layer, side, h, basis.transform, options.importance, options.rows);
    fit.heads.push_back(vector_code(fit, basis, std::move(rows), shapes, options, head_seed(layer, side, h)));
  }
  return fit;
}
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("nova-{}x{}{}", options.shape.size, options.shape.bits, options.norm ? "-norm" : "");
}

}  // namespace klt_vector

namespace klt_scalar {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const LayerShape& shape = layer.sums.shape();
  const auto targets = head_targets(layer, side, "qqt");
  LayerFit fit;
  for (int h = 0; h < shape.kv_heads; ++h) {
    const std::string what = place(layer, side, h, "nova-scalar");
    const Klt basis =
        klt(targets[static_cast<size_t>(h)] * shape.group(),
            centred_rows(layer.sums, side, h, Importance::None), Partition::Contiguous, 1, what);
    check_transform(fit, basis.transform, basis.eigenvalues, basis.residual, what);
    fit.heads.push_back(scalar_code(options, basis.transform, basis.eigenvalues));
  }
  return fit;
}
std::string objective(Side, const MethodOptions&) {
  return "nova-scalar";
}

}  // namespace klt_scalar

}  // namespace oscar
