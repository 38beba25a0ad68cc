// awvq: vector codes in the KLT of what reads the rows, trained on what matters of them.
#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar::awvq {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  check_shape(layer.sums.shape().dim(side), options.shape);
  LayerFit fit;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    const Klt basis = attention_klt(layer, side, h, options, options.partition, options.shape.size, "awvq");
    add_vector_head(fit, layer, side, h, basis, options, "awvq");
  }
  return fit;
}
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("awvq-{}x{}{}", options.shape.size, options.shape.bits, options.norm ? "-norm" : "");
}

}  // namespace oscar::awvq
