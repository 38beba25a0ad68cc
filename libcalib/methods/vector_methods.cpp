// Codes in a KLT basis: awvq and awsq (attention-weighted, docs/math.md) and NOVA-KV's keys.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar {

static uint64_t head_seed(const LayerStatistics& layer, Side side, int head) {
  return static_cast<uint64_t>((layer.sums.shape().layer * 256 + head) * 2 + (side == Side::V));
}

// Of each head: F = M^1/2 E in the metric of what reads the rows (a target of K; G for values), around the
// mean of the rows that matter.
static Klt attention_klt(const LayerStatistics& layer, Side side, int head, const MethodOptions& options,
                         Partition partition, int size, std::string_view name) {
  const Matrix metric = side == Side::K ? head_targets(layer, side, options.target)[static_cast<size_t>(head)]
                                        : layer.value_metric.at(static_cast<size_t>(head));
  return klt(metric, centred_rows(layer.sums, side, head, options.importance), partition, size,
             place(layer, side, head, name));
}

static LayerFit fit_vectors(const LayerStatistics& layer, Side side, const MethodOptions& options) {
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
static std::string vector_objective(const MethodOptions& options) {
  return fmt::format("awvq-{}x{}{}", options.shape.size, options.shape.bits, options.norm ? "-norm" : "");
}

namespace attention_keys {
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_vectors(layer, side, options);
}
std::string objective(Side, const MethodOptions& options) {
  return vector_objective(options);
}
}  // namespace attention_keys

namespace attention_values {
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_vectors(layer, side, options);
}
std::string objective(Side, const MethodOptions& options) {
  return vector_objective(options);
}
}  // namespace attention_values

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

static LayerFit fit_budget(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const int dim = layer.sums.shape().dim(side);
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
      HeadCode code = vector_code(scratch, basis, rows.train, uniform_shapes(dim, shape), options,
                                  head_seed(layer, side, h));
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
static std::string budget_objective(const MethodOptions& options) {
  return fmt::format("budget-{}bit{}", options.bits, options.norm ? "-norm" : "");
}

namespace budget_keys {
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_budget(layer, side, options);
}
std::string objective(Side, const MethodOptions& options) {
  return budget_objective(options);
}
}  // namespace budget_keys

namespace budget_values {
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_budget(layer, side, options);
}
std::string objective(Side, const MethodOptions& options) {
  return budget_objective(options);
}
}  // namespace budget_values

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

static constexpr int kMostBits = 4;

// Uniform levels (i - (2^b - 1) / 2) step of one channel, the step of least weighted error on a fine grid.
struct Levels {
  std::vector<float> words;
  double error = 0;
};
static Levels uniform_levels(const std::vector<float>& values, const std::vector<float>& weights, int bits) {
  double energy = 0, mass = 0;
  for (size_t r = 0; r < values.size(); ++r) {
    energy += static_cast<double>(weights[r]) * values[r] * values[r];
    mass += weights[r];
  }
  if (bits == 0) return {{0}, energy};
  const double sigma = std::sqrt(energy / mass), count = 1 << bits, top = (count - 1) / 2;
  Levels best{std::vector<float>(static_cast<size_t>(count)), INFINITY};
  for (double steps = 0.5; steps <= 1.5001; steps += 0.05) {  // of the range +- 2.5 sigma
    const double step = steps * 5 * sigma / (count + 1);
    double error = 0;
    for (size_t r = 0; r < values.size(); ++r) {
      const double x = values[r],
                   level = step > 0 ? std::clamp(std::round(x / step + top), 0.0, count - 1) : 0;
      error += weights[r] * std::pow(x - (level - top) * step, 2);
    }
    if (!(error < best.error)) continue;
    best.error = error;
    for (size_t i = 0; i < best.words.size(); ++i)
      best.words[i] = static_cast<float>((static_cast<double>(i) - top) * step);
  }
  return best;
}

static LayerFit fit_scalars(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const int dim = layer.sums.shape().dim(side);
  LayerFit fit;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    const Klt basis = attention_klt(layer, side, h, options, Partition::Contiguous, 1, "awsq");
    check_transform(fit, basis.transform, basis.eigenvalues, basis.residual, place(layer, side, h, "awsq"));
    TrainingRows rows = training_rows(layer, side, h, basis.transform, options.importance, options.rows);
    if (options.norm) normalise(rows, dim);
    // Reverse water-filling with whole bits: each goes to the channel whose error it lowers most.
    std::vector<std::vector<Levels>> levels(static_cast<size_t>(dim));
    std::vector<float> channel(static_cast<size_t>(rows.count));
    double energy = 0;
    for (int c = 0; c < dim; ++c) {
      for (int64_t r = 0; r < rows.count; ++r)
        channel[static_cast<size_t>(r)] = rows.rows[static_cast<size_t>(r * dim + c)];
      for (int bits = 0; bits <= kMostBits; ++bits)
        levels[static_cast<size_t>(c)].push_back(uniform_levels(channel, rows.weights, bits));
      energy += levels[static_cast<size_t>(c)][0].error;
    }
    std::vector<int> bits(static_cast<size_t>(dim), 0);
    const auto gain = [&](size_t c) {
      return bits[c] < kMostBits ? levels[c][static_cast<size_t>(bits[c])].error -
                                       levels[c][static_cast<size_t>(bits[c] + 1)].error
                                 : -1.0;
    };
    for (int left = static_cast<int>(options.bits * dim); left > 0; --left) {
      size_t best = 0;
      for (size_t c = 1; c < bits.size(); ++c) {
        if (gain(c) > gain(best)) best = c;
      }
      ++bits[best];
    }
    Codebook codebook{.groups = {}, .norm = options.norm};
    double error = 0;
    for (size_t c = 0; c < bits.size(); ++c) {
      auto& chosen = levels[c][static_cast<size_t>(bits[c])];
      error += chosen.error;
      codebook.groups.push_back({.size = 1, .bits = bits[c], .words = std::move(chosen.words)});
    }
    if (energy > 0) fit.check.distortion = std::max(fit.check.distortion, error / energy);
    fit.heads.push_back({.transform = basis.transform,
                         .codec = &find_codec("vector"),
                         .options = {.codebook = std::make_shared<const Codebook>(std::move(codebook))},
                         .eigenvalues = basis.eigenvalues});
  }
  return fit;
}
static std::string scalar_objective(const MethodOptions& options) {
  return fmt::format("awsq-{}bit{}", options.bits, options.norm ? "-norm" : "");
}

namespace scalar_keys {
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_scalars(layer, side, options);
}
std::string objective(Side, const MethodOptions& options) {
  return scalar_objective(options);
}
}  // namespace scalar_keys

namespace scalar_values {
LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  return fit_scalars(layer, side, options);
}
std::string objective(Side, const MethodOptions& options) {
  return scalar_objective(options);
}
}  // namespace scalar_values
}  // namespace oscar
