// awvq: vector codes in the KLT of what reads the rows, trained on what matters of them.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar::awvq {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const Shapes shapes = uniform_shapes(layer.sums.shape().dim(side), options.shape);
  LayerFit fit;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    const Klt basis = attention_klt(layer, side, h, options, options.partition, options.shape.size, "awvq");
    check_transform(fit, basis.transform, basis.eigenvalues, basis.residual, place(layer, side, h, "awvq"));
    fit.check.volume_spread =
        std::max(fit.check.volume_spread, volume_spread(basis.variances, options.shape.size));
    auto rows = training_rows(layer, side, h, basis.transform, options.importance, options.rows);
    fit.heads.push_back(vector_code(fit, basis, std::move(rows), shapes, options, head_seed(layer, side, h)));
  }
  return fit;
}
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("awvq-{}x{}{}", options.shape.size, options.shape.bits, options.norm ? "-norm" : "");
}

}  // namespace oscar::awvq
