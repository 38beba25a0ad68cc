#include "libdump/model_config.h"

#include <fmt/format.h>

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

std::vector<double> RopeConfig::frequencies() const {
  std::vector<double> result(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    double& frequency = result[i];
    frequency = std::pow(base, -2.0 * static_cast<double>(i) / dim);
    if (scaling == "linear") frequency /= factor;
    if (scaling == "llama3") frequency = llama3(*this, frequency);
    if (scaling == "divisors") frequency /= divisors[i];
  }
  return result;
}

std::string RopeConfig::describe() const {
  std::string text =
      fmt::format("{} dim={} base={} scaling={}", neighbours ? "neighbours" : "halves", dim, base, scaling);
  if (scaling == "linear") text += fmt::format(" factor={}", factor);
  if (scaling == "llama3")
    text += fmt::format(" factor={} low={} high={} context={}", factor, low_frequency, high_frequency,
                        original_context);
  if (scaling == "divisors") {
    for (const double divisor : divisors) text += fmt::format(" {}", divisor);
  }
  return text;
}

std::string ModelConfig::describe_rope() const {
  std::string text;
  for (const auto& rope : ropes) text += (text.empty() ? "" : "; ") + rope.describe();
  return text.empty() ? "none" : text;
}

}  // namespace oscar
