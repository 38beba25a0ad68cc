#include "libcalib/allocation.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"

namespace oscar {
namespace {

// Indices of the lower convex hull, from the cheapest on: each next one costs more and loses less, at a
// falling rate.
std::vector<int> hull(const std::vector<Choice>& choices) {
  std::vector<int> order(choices.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  const auto at = [&](int i) -> const Choice& { return choices[static_cast<size_t>(i)]; };
  std::ranges::stable_sort(order, [&](int a, int b) {
    return at(a).bits != at(b).bits ? at(a).bits < at(b).bits : at(a).loss < at(b).loss;
  });
  std::vector<int> kept;
  const auto rate = [&](int from, int to) {
    return (at(from).loss - at(to).loss) / (at(to).bits - at(from).bits);
  };
  for (const int i : order) {
    if (!kept.empty() && at(i).loss >= at(kept.back()).loss) continue;
    while (kept.size() > 1 && rate(kept[kept.size() - 2], kept.back()) <= rate(kept.back(), i))
      kept.pop_back();
    if (!kept.empty() && at(i).bits == at(kept.back()).bits) continue;
    kept.push_back(i);
  }
  return kept;
}

struct Step {
  size_t item, place;  // to hulls[item][place]
  double rate, bits;
};

}  // namespace

std::vector<int> allocate(const std::vector<std::vector<Choice>>& choices, double budget) {
  std::vector<std::vector<int>> hulls;
  std::vector<int> chosen;
  std::vector<Step> steps;
  double spent = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    hulls.push_back(hull(choices[i]));
    const auto at = [&](size_t place) -> const Choice& {
      return choices[i][static_cast<size_t>(hulls[i][place])];
    };
    chosen.push_back(hulls[i][0]);
    spent += at(0).bits;
    for (size_t place = 1; place < hulls[i].size(); ++place) {
      const double bits = at(place).bits - at(place - 1).bits;
      steps.push_back({i, place, (at(place - 1).loss - at(place).loss) / bits, bits});
    }
  }
  const double slack = 1e-9 * std::max(budget, 1.0);
  if (spent > budget + slack)
    throw invalid("a budget of {:.0f} bits is less than the cheapest codes need, {:.0f}", budget, spent);
  std::ranges::stable_sort(steps, [](const Step& a, const Step& b) { return a.rate > b.rate; });
  std::vector<size_t> place(choices.size(), 0);
  for (const Step& step : steps) {
    if (place[step.item] + 1 != step.place || spent + step.bits > budget + slack) continue;
    place[step.item] = step.place;
    chosen[step.item] = hulls[step.item][step.place];
    spent += step.bits;
  }
  // What is left: the best single change that fits, until there is none.
  for (;;) {
    size_t item = choices.size();
    int to = 0;
    double best = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      const Choice& now = choices[i][static_cast<size_t>(chosen[i])];
      for (size_t c = 0; c < choices[i].size(); ++c) {
        const Choice& other = choices[i][c];
        if (now.loss - other.loss <= best || spent - now.bits + other.bits > budget + slack) continue;
        best = now.loss - other.loss;
        item = i;
        to = static_cast<int>(c);
      }
    }
    if (item == choices.size()) break;
    spent +=
        choices[item][static_cast<size_t>(to)].bits - choices[item][static_cast<size_t>(chosen[item])].bits;
    chosen[item] = to;
  }
  return chosen;
}

}  // namespace oscar
