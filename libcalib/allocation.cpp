#include "libcalib/allocation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "formats/error.h"

namespace oscar {
namespace {

constexpr double kMostUnits = 1 << 15, kRounding = 1e-9;

// The largest step that all numbers are multiples of, to a 1024th of a bit.
double common_step(const std::vector<std::vector<double>>& extra) {
  constexpr double kParts = 1024;
  int64_t step = 0;
  for (const auto& list : extra) {
    for (const double bits : list) step = std::gcd(step, std::llround(bits * kParts));
  }
  return static_cast<double>(std::max<int64_t>(step, 1)) / kParts;
}

}  // namespace

std::vector<int> allocate(const std::vector<std::vector<Choice>>& choices, double budget) {
  std::vector<std::vector<double>> extra;  // bits of each choice above the item's cheapest
  double spent = 0, most = 0;
  for (const auto& list : choices) {
    const double least = std::ranges::min(list, {}, &Choice::bits).bits;
    spent += least;
    auto& own = extra.emplace_back();
    for (const Choice& choice : list) own.push_back(choice.bits - least);
    most += std::ranges::max(own);
  }
  if (spent > budget + kRounding * std::max(budget, 1.0))
    throw invalid("a budget of {:.0f} bits is less than the cheapest codes need, {:.0f}", budget, spent);

  const double left = std::clamp(budget - spent, 0.0, most);
  const double unit = std::max(common_step(extra), left / kMostUnits);
  const auto units = static_cast<size_t>(left / unit + kRounding);
  // least[b]: of the items so far, for at most b units; taken[i][b]: what item i has then.
  std::vector<double> least(units + 1, 0.0), next(units + 1);
  std::vector<std::vector<uint8_t>> taken(choices.size(), std::vector<uint8_t>(units + 1));
  const auto cost = [&](size_t item, size_t choice) {
    return static_cast<size_t>(std::ceil(extra[item][choice] / unit - kRounding));
  };
  for (size_t i = 0; i < choices.size(); ++i) {
    std::ranges::fill(next, INFINITY);
    for (size_t c = 0; c < choices[i].size(); ++c) {
      for (size_t b = cost(i, c); b <= units; ++b) {
        const double loss = least[b - cost(i, c)] + choices[i][c].loss;
        if (!(loss < next[b])) continue;
        next[b] = loss;
        taken[i][b] = static_cast<uint8_t>(c);
      }
    }
    least.swap(next);
  }
  std::vector<int> chosen(choices.size());
  size_t b = units;
  for (size_t i = choices.size(); i-- > 0;) {
    chosen[i] = taken[i][b];
    b -= cost(i, taken[i][b]);
  }
  return chosen;
}

}  // namespace oscar
