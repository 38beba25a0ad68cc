#include "libcalib/gaussian.h"

#include <cmath>
#include <numbers>

namespace oscar {

double GaussianSource::uniform() {
  return static_cast<double>((engine_() >> 11) + 1) * 0x1p-53;
}

double GaussianSource::operator()() {
  const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * std::numbers::pi * uniform();
  return std::round(radius * std::cos(angle) * 0x1p40) * 0x1p-40;
}

std::vector<float> gaussian_levels(int bits) {
  const auto density = [](double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi); };
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
  const int count = 1 << bits;
  std::vector<double> levels(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) levels[static_cast<size_t>(i)] = 6.0 * (i + 0.5) / count - 3;
  for (int iteration = 0; iteration < 20000; ++iteration) {
    auto next = levels;
    double moved = 0, low = -INFINITY;
    for (size_t i = 0; i < levels.size(); ++i) {
      const double high = i + 1 < levels.size() ? 0.5 * (levels[i] + levels[i + 1]) : INFINITY;
      const double mass = below(high) - below(low);
      if (mass > 0)
        next[i] = ((std::isinf(low) ? 0 : density(low)) - (std::isinf(high) ? 0 : density(high))) / mass;
      moved = std::max(moved, std::abs(next[i] - levels[i]));
      low = high;
    }
    levels = next;
    if (moved < 1e-12) break;
  }
  return {levels.begin(), levels.end()};
}

}  // namespace oscar
