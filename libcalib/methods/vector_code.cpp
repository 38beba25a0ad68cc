#include "libcalib/methods/vector_code.h"

#include <algorithm>
#include <cmath>

#include "formats/dtype.h"
#include "formats/error.h"
#include "libcalib/codeword_storage.h"

namespace oscar {

void check_shape(int dim, const Shape2& shape) {
  if (dim % shape.size != 0) {
    throw invalid("shape {}x{}: codes of {} channels do not divide the head dim {}", shape.size, shape.bits,
                  shape.size, dim);
  }
}

TrainingOptions training_options(const MethodOptions& options) {
  return {.iterations = options.iterations, .refine = options.refine, .restarts = options.restarts};
}

void normalise(TrainingRows& rows, int dim) {
  for (int64_t r = 0; r < rows.count; ++r) {
    float* row = rows.rows.data() + r * dim;
    double squares = 0;
    for (int i = 0; i < dim; ++i) squares += static_cast<double>(row[i]) * row[i];
    const double held = std::clamp(std::sqrt(squares / dim), 0x1p-24, 65504.0);  // as the codec has it
    const float rms = f16_to_float(float_to_f16(static_cast<float>(held)));
    for (int i = 0; i < dim; ++i) row[i] /= rms;
    rows.weights[static_cast<size_t>(r)] *= rms * rms;
  }
}

HeadCode vector_code(LayerFit& fit, const Klt& klt, TrainingRows rows, const Shape2& shape,
                     const MethodOptions& options, uint64_t seed) {
  const int dim = static_cast<int>(klt.variances.size());
  if (options.norm) {
    const bool plain = options.importance == Importance::None;
    const auto weights = rows.weights;
    normalise(rows, dim);
    if (plain) rows.weights = weights;  // NOVA-KV: every normalised row alike
  }
  Codebook codebook{.groups = {}, .norm = options.norm};
  double error = 0, energy = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    for (int64_t i = r * dim; i < (r + 1) * dim; ++i)
      energy += static_cast<double>(rows.weights[static_cast<size_t>(r)]) *
                rows.rows[static_cast<size_t>(i)] * rows.rows[static_cast<size_t>(i)];
  }
  const double per_word = static_cast<double>(rows.count) / (1 << shape.bits);
  double& least = fit.check.rows_per_word;
  least = least > 0 ? std::min(least, per_word) : per_word;
  std::vector<std::vector<float>> columns;  // of each group, contiguous
  std::vector<TrainingGroup> groups;
  for (int channel = 0; channel < dim; channel += shape.size) {
    auto& column = columns.emplace_back();
    column.reserve(static_cast<size_t>(rows.count * shape.size));
    for (int64_t r = 0; r < rows.count; ++r) {
      const float* from = rows.rows.data() + r * dim + channel;
      column.insert(column.end(), from, from + shape.size);
    }
    groups.push_back({column.data(), options.seed + 1000003 * seed + static_cast<uint64_t>(channel)});
  }
  for (auto& trained : train_codebooks(groups, rows.weights.data(), rows.count, shape.size, 1 << shape.bits,
                                       training_options(options), *options.search)) {
    round_words(trained.words, options.stored);
    error += trained.loss;
    codebook.groups.push_back({.size = shape.size, .bits = shape.bits, .words = std::move(trained.words)});
  }
  if (energy > 0) fit.check.distortion = std::max(fit.check.distortion, error / energy);
  return {.transform = klt.transform,
          .codec = &find_codec("vector"),
          .options = {.codebook = std::make_shared<const Codebook>(std::move(codebook))},
          .eigenvalues = klt.eigenvalues};
}

Distortion distortion(const HeadCode& code, const TrainingRows& rows) {
  const auto dim = static_cast<int>(rows.rows.size() / static_cast<size_t>(std::max<int64_t>(rows.count, 1)));
  const auto encoded = code.codec->encode(rows.rows.data(), rows.count, dim, code.options);
  std::vector<float> decoded(rows.rows.size());
  encoded->decode(0, rows.count, decoded.data());
  Distortion sum;
  for (int64_t r = 0; r < rows.count; ++r) {
    double error = 0, energy = 0;
    for (int64_t i = r * dim; i < (r + 1) * dim; ++i) {
      const double x = rows.rows[static_cast<size_t>(i)];
      error += std::pow(x - decoded[static_cast<size_t>(i)], 2);
      energy += x * x;
    }
    sum.error += rows.weights[static_cast<size_t>(r)] * error;
    sum.energy += rows.weights[static_cast<size_t>(r)] * energy;
  }
  return sum;
}

uint64_t head_seed(const LayerStatistics& layer, Side side, int head) {
  return static_cast<uint64_t>((layer.sums.shape().layer * 256 + head) * 2 + (side == Side::V));
}

Klt attention_klt(const LayerStatistics& layer, Side side, int head, const MethodOptions& options,
                  Partition partition, int size, std::string_view name) {
  const Matrix metric = side == Side::K ? head_targets(layer, side, options.target)[static_cast<size_t>(head)]
                                        : layer.value_metric.at(static_cast<size_t>(head));
  return klt(metric, centred_rows(layer.sums, side, head, options.importance), partition, size,
             place(layer, side, head, name));
}

void add_vector_head(LayerFit& fit, const LayerStatistics& layer, Side side, int head, const Klt& basis,
                     const MethodOptions& options, std::string_view name) {
  check_transform(fit, basis.transform, basis.eigenvalues, basis.residual, place(layer, side, head, name));
  const int size = options.shape.size;
  fit.check.volume_spread = std::max(fit.check.volume_spread, volume_spread(basis.variances, size));
  fit.heads.push_back(vector_code(
      fit, basis, training_rows(layer, side, head, basis.transform, options.importance, options.rows),
      options.shape, options, head_seed(layer, side, head)));
}

}  // namespace oscar
