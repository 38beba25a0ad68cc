// NOVA-KV's keys, as vector codes and as scalar INT2: the KLT in the metric of the queries, all tokens alike.
#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar {

// NOVA-KV sums over the query heads that share the KV head, where targets are means.
static Klt nova_klt(const LayerStatistics& layer, Side side, int head, Partition partition, int size,
                    const std::string& what) {
  const Matrix metric =
      head_targets(layer, side, "qqt")[static_cast<size_t>(head)] * layer.sums.shape().group();
  return klt(metric, centred_rows(layer.sums, side, head, Importance::None), partition, size, what);
}

namespace klt_vector {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  check_shape(layer.sums.shape().dim(side), options.shape);
  LayerFit fit;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    const Klt basis =
        nova_klt(layer, side, h, options.partition, options.shape.size, place(layer, side, h, "nova"));
    add_vector_head(fit, layer, side, h, basis, options, "nova");
  }
  return fit;
}
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("nova-{}x{}{}", options.shape.size, options.shape.bits, options.norm ? "-norm" : "");
}

}  // namespace klt_vector

namespace klt_scalar {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  LayerFit fit;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    const std::string what = place(layer, side, h, "nova-scalar");
    const Klt basis = nova_klt(layer, side, h, Partition::Contiguous, 1, what);
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
