// awsq: the transforms of awvq with scalar codes, bits by reverse water-filling.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar::awsq {

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

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const int dim = layer.sums.shape().dim(side);
  if (options.bits > kMostBits)
    throw invalid("bits={}: awsq gives a channel 0 to {} bits", options.bits, kMostBits);
  LayerFit fit;
  for (int h = 0; h < layer.sums.shape().kv_heads; ++h) {
    const Klt basis = attention_klt(layer, side, h, options, Partition::Contiguous, 1, "awsq");
    check_transform(fit, basis.transform, basis.eigenvalues, basis.residual, place(layer, side, h, "awsq"));
    // Steps of evenly spaced levels need few rows: so many where the options do not say.
    constexpr int64_t kRows = 8192;
    TrainingRows rows = training_rows(layer, side, h, basis.transform, options.importance,
                                      options.rows > 0 ? options.rows : kRows);
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
std::string objective(Side, const MethodOptions& options) {
  return fmt::format("awsq-{}bit{}", options.bits, options.norm ? "-norm" : "");
}

}  // namespace oscar::awsq
