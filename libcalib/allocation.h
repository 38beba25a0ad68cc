// A budget instead of a method: which of several codes each item (a layer, a KV head, keys or values) takes,
// so that the predicted losses add up to the least at no more than the budget.
#pragma once
#include <cstdint>
#include <vector>

namespace oscar {

struct Choice {
  double bits = 0;  // of the item, all its channels together
  double loss = 0;  // predicted, in a unit that all items share
};
// choices[i]: what item i may take, at least one. Returns an index for each. Lagrange: every item starts with
// its cheapest choice and the steps along the lower convex hulls are taken in the order of loss saved a bit,
// as long as they fit; what is left then goes to single upgrades that still fit. Never more than `budget`
// bits in all; std::invalid_argument when even the cheapest choices are more. Ties go to the lower item.
std::vector<int> allocate(const std::vector<std::vector<Choice>>& choices, double budget);

}  // namespace oscar
