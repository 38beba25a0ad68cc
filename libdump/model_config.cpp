#include "libdump/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace oscar {

// llama3, of the Llama 3.1 release: wavelengths beyond original_context / low_frequency are stretched by
// `factor`, those below original_context / high_frequency stay, between them it is interpolated.
static double llama3(const RopeConfig& rope, double frequency) {
  const double turns = static_cast<double>(rope.original_context) * frequency / (2 * std::numbers::pi);
  if (turns < rope.low_frequency) return frequency / rope.factor;
  if (turns > rope.high_frequency) return frequency;
  const double smooth = (turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// YaRN (arXiv:2309.00071), 3.2, as transformers computes it: dims that turn more often than high_frequency
// within original_context keep their frequency, those below low_frequency have it divided, between them it is
// a ramp over dims.
static void yarn(const RopeConfig& rope, std::vector<double>& frequencies) {
  const auto dim_of = [&](double turns) {
    return rope.dim * std::log(static_cast<double>(rope.original_context) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.base));
  };
  double low = dim_of(rope.high_frequency), high = dim_of(rope.low_frequency);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double divided = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= divided / rope.factor + (1 - divided);
  }
}

bool RopeConfig::stretched(int64_t length) const {
  return (scaling == "dynamic" || scaling == "longrope") && length > original_context;
}

std::vector<double> RopeConfig::frequencies(int64_t length) const {
  std::vector<double> result(static_cast<size_t>(dim / 2));
  double of = base;
  if (scaling == "dynamic" && stretched(length)) {
    const double longer = static_cast<double>(length) / static_cast<double>(original_context);
    of *= std::pow(factor * longer - (factor - 1), dim / (dim - 2.0));
  }
  for (size_t i = 0; i < result.size(); ++i) {
    double& frequency = result[i];
    frequency = std::pow(of, -2.0 * static_cast<double>(i) / dim);
    if (scaling == "linear") frequency /= factor;
    if (scaling == "llama3") frequency = llama3(*this, frequency);
    if (scaling == "divisors") frequency /= divisors[i];
    if (scaling == "longrope") frequency /= stretched(length) ? long_divisors[i] : divisors[i];
  }
  if (scaling == "yarn") yarn(*this, result);
  return result;
}

std::string RopeConfig::describe() const {
  std::string text =
      fmt::format("{} dim={} base={} scaling={}", neighbours ? "neighbours" : "halves", dim, base, scaling);
  const bool fades = scaling == "llama3" || scaling == "yarn";
  if (scaling == "linear" || scaling == "dynamic" || fades) text += fmt::format(" factor={}", factor);
  if (fades) text += fmt::format(" low={} high={}", low_frequency, high_frequency);
  if (fades || scaling == "dynamic" || scaling == "longrope")
    text += fmt::format(" context={}", original_context);
  if (scaling == "yarn" && !truncate) text += " untruncated";
  if (attention_factor != 1) text += fmt::format(" attention={}", attention_factor);
  for (const double divisor : divisors) text += fmt::format(" {}", divisor);
  if (!long_divisors.empty()) text += " long";
  for (const double divisor : long_divisors) text += fmt::format(" {}", divisor);
  return text;
}

std::string ModelConfig::describe_rope() const {
  std::string text;
  for (const auto& rope : ropes) text += (text.empty() ? "" : "; ") + rope.describe();
  return text.empty() ? "none" : text;
}

}  // namespace oscar
