// awsq: the transforms of awvq with scalar codes, bits by reverse water-filling.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/methods/vector_code.h"

namespace oscar::awsq {

static constexpr int kMostBits = 4;

// The values of one channel in order, with sums of w, w x and w x^2 up to each: the error of any levels costs
// a search a threshold.
class Channel {
 public:
  Channel(const TrainingRows& rows, int dim, int channel) {
    std::vector<std::pair<float, float>> sorted;
    for (int64_t r = 0; r < rows.count; ++r)
      sorted.emplace_back(rows.rows[static_cast<size_t>(r * dim + channel)],
                          rows.weights[static_cast<size_t>(r)]);
    std::ranges::sort(sorted);
    sums_.push_back({});
    for (const auto& [x, w] : sorted) {
      values_.push_back(x);
      const Sums& last = sums_.back();
      sums_.push_back({last.w + w, last.wx + double{w} * x, last.wxx + double{w} * x * x});
    }
  }
  double energy() const { return sums_.back().wxx; }
  double sigma() const { return sums_.back().w > 0 ? std::sqrt(energy() / sums_.back().w) : 0; }
  double largest() const { return values_.empty() ? 0 : std::max<double>(-values_.front(), values_.back()); }
  // Of levels (i - (count - 1) / 2) step, each value at its nearest.
  double error(int count, double step) const {
    double total = 0;
    size_t from = 0;
    for (int i = 0; i < count; ++i) {
      const double level = (i - (count - 1) / 2.0) * step;
      const auto end = i + 1 < count ? std::lower_bound(values_.begin(), values_.end(),
                                                        static_cast<float>(level + step / 2))
                                     : values_.end();
      const auto to = static_cast<size_t>(end - values_.begin());
      const Sums &a = sums_[from], &b = sums_[to];
      total += (b.wxx - a.wxx) - 2 * level * (b.wx - a.wx) + level * level * (b.w - a.w);
      from = to;
    }
    return total;
  }

 private:
  struct Sums {
    double w = 0, wx = 0, wxx = 0;
  };
  std::vector<float> values_;
  std::vector<Sums> sums_;  // one more than values
};

// Evenly spaced levels of one channel, the step of least weighted error between a quarter of a normal
// channel's and the one that reaches the largest value. Steps are float32: a cache holds one, not the words.
struct Levels {
  std::vector<float> words;
  double error = 0;
};
static Levels uniform_levels(const Channel& channel, int bits) {
  if (bits == 0) return {{0}, channel.energy()};
  constexpr double kFiner = 1.04;
  const int count = 1 << bits;
  const double least = 1.25 * channel.sigma() / (count + 1),
               most = std::max(2 * channel.largest() / (count - 1), 2 * least);
  double best = 0, error = channel.energy();
  for (double next = least; next > 0 && next <= most * kFiner; next *= kFiner) {
    const double step = static_cast<float>(next);
    if (const double found = channel.error(count, step); found < error) {
      error = found;
      best = step;
    }
  }
  Levels levels{{}, error};
  for (int i = 0; i < count; ++i) levels.words.push_back(static_cast<float>((i - (count - 1) / 2.0) * best));
  return levels;
}

// Bits of a row's codes, which are stored in whole bytes: as many of those as `bits` a channel pay for. A norm is
// held beside them.
static int row_bits(double bits, int dim) {
  if (bits > kMostBits) throw invalid("bits={}: awsq gives a channel 0 to {} bits", bits, kMostBits);
  const int whole = static_cast<int>(bits * dim * (1 + 1e-12)) / 8 * 8;  // 1.16 x 200 is below 232 in double
  if (whole == 0)
    throw invalid("bits={}: a row is stored in whole bytes, of {} channels: the least is {} bits a channel",
                  bits, dim, 8.0 / dim);
  return whole;
}

LayerFit fit(const LayerStatistics& layer, Side side, const MethodOptions& options) {
  const int dim = layer.sums.shape().dim(side);
  const int budget = row_bits(options.bits, dim);
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
    double energy = 0;
    for (int c = 0; c < dim; ++c) {
      const Channel channel(rows, dim, c);
      for (int bits = 0; bits <= kMostBits; ++bits)
        levels[static_cast<size_t>(c)].push_back(uniform_levels(channel, bits));
      energy += levels[static_cast<size_t>(c)][0].error;
    }
    std::vector<int> bits(static_cast<size_t>(dim), 0);
    const auto gain = [&](size_t c) {
      return bits[c] < kMostBits ? levels[c][static_cast<size_t>(bits[c])].error -
                                       levels[c][static_cast<size_t>(bits[c] + 1)].error
                                 : -INFINITY;  // below what a level can lose
    };
    for (int left = budget; left > 0; --left) {
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
