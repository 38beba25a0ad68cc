// budget: awvq in every shape of a list, each with the loss that is predicted of it; fit() chooses
// (libcalib/allocation.h).
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar::budget {

// Every sixteenth row is kept from training: what a codebook loses on them is what it is chosen by.
struct SplitRows {
  TrainingRows train, held_out;
};
static SplitRows split_rows(const TrainingRows& rows, int dim) {
  constexpr int64_t kEvery = 16;
  SplitRows split;
  for (int64_t r = 0; r < rows.count; ++r) {
    TrainingRows& to = r % kEvery == kEvery - 1 ? split.held_out : split.train;
    to.rows.insert(to.rows.end(), rows.rows.begin() + r * dim, rows.rows.begin() + (r + 1) * dim);
    to.weights.push_back(rows.weights[static_cast<size_t>(r)]);
    ++to.count;
  }
  return split;
}

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const int dim = layer.sums.shape().dim(side);
  double least = INFINITY;
  for (const Shape2& shape : options.shapes) {
    if (dim % shape.size == 0) least = std::min(least, static_cast<double>(shape.bits) / shape.size);
  }
  if (options.bits < least && std::isfinite(least)) {  // before anything is trained
    throw invalid("bits={}: the least that these codes can take is {} bits a channel", options.bits, least);
  }
  LayerFit fit;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    auto& candidates = fit.candidates.emplace_back();
    for (const Shape2& shape : options.shapes) {
      if (dim % shape.size != 0) continue;
      const Klt basis = attention_klt(layer, side, h, options, options.partition, shape.size, "budget");
      check_transform(fit, basis.transform, basis.eigenvalues, basis.residual,
                      place(layer, side, h, "budget"));
      const SplitRows rows =
          split_rows(training_rows(layer, side, h, basis.transform, options.importance, options.rows), dim);
      if (rows.held_out.count == 0)
        throw invalid("layer {}: a budget needs more sampled rows (oscar-dump --rows)",
                      layer.sums.shape().layer);
      LayerFit scratch;
      HeadCode code = vector_code(scratch, basis, rows.train, shape, options, head_seed(layer, side, h));
      fit.check.rows_per_word = scratch.check.rows_per_word;
      double mass = 0;
      for (const float weight : rows.held_out.weights) mass += weight;
      const double error = mass > 0 ? distortion(code, rows.held_out).error / mass : 0;
      const auto bits =
          static_cast<double>((code.options.codebook->payload_bits() + 7) / 8 * 8 + (options.norm ? 16 : 0));
      candidates.push_back({std::move(code), bits, predicted_loss(layer, side, h, error)});
    }
    if (candidates.empty()) throw invalid("budget: none of the shapes divides the head dim {}", dim);
  }
  return fit;
}
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("budget-{}bit{}", options.bits, options.norm ? "-norm" : "");
}

}  // namespace oscar::budget
