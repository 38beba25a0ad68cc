// KVQuant's non-uniform levels: four (or 2^bits) levels found by weighted k-means. Keys: levels of each
// channel. Values: rows are divided by their RMS and all channels share one set of levels. Post-RoPE, and
// without the sparse outliers of the paper.
#include <cmath>

#include "formats/error.h"
#include "libcalib/codeword_storage.h"
#include "libcalib/methods/vector_code.h"

namespace oscar::channel_levels {

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const LayerShape& shape = layer.sums.shape();
  const int dim = shape.dim(side), bits = static_cast<int>(options.bits);
  if (bits != options.bits || bits < 1 || bits > 8)
    throw invalid("bits={}: expected 1 to 8, whole", options.bits);
  LayerFit fit;
  for (int h = 0; h < shape.kv_heads; ++h) {
    TrainingRows rows = training_rows(layer, side, h, {}, options.importance, options.rows);
    if (options.norm) normalise(rows, dim);
    // Channel after channel: training looks at every so many-th value, which must not be always the same channels.
    std::vector<float> values, weights;
    for (int c = 0; c < dim; ++c) {
      for (int64_t r = 0; r < rows.count; ++r) values.push_back(rows.rows[static_cast<size_t>(r * dim + c)]);
      if (c == 0 || options.norm) weights.insert(weights.end(), rows.weights.begin(), rows.weights.end());
    }
    std::vector<TrainingGroup> groups;
    for (int c = 0; c < (options.norm ? 1 : dim); ++c)
      groups.push_back({values.data() + c * rows.count, options.seed});
    Codebook codebook{.groups = {}, .norm = options.norm};
    for (auto& trained : train_codebooks(groups, weights.data(), static_cast<int64_t>(weights.size()), 1,
                                         1 << bits, training_options(options), *options.search)) {
      round_words(trained.words, options.stored);
      codebook.groups.push_back({.size = 1, .bits = bits, .words = std::move(trained.words)});
    }
    if (options.norm) codebook.groups.resize(static_cast<size_t>(dim), codebook.groups[0]);
    fit.heads.push_back({.transform = {},
                         .codec = &find_codec("vector"),
                         .options = {.codebook = std::make_shared<const Codebook>(std::move(codebook))},
                         .eigenvalues = {}});
  }
  return fit;
}
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("nuq-{}bit", options.bits);
}

}  // namespace oscar::channel_levels
