// A budget instead of a method: which of several codes each item (a layer, a KV head, keys or values) takes,
// so that the predicted losses add up to the least at no more than the budget.
#pragma once
#include <vector>

namespace oscar {

struct Choice {
  double bits = 0;  // of the item, all its channels together
  double loss = 0;  // predicted, in a unit that all items share
};
// choices[i]: what item i may take, at least one. Returns an index for each: the least sum of losses there
// is, by dynamic programming over the bits. Costs that have a common unit (rows are whole bytes) are exact up
// to 2^15 units of budget; beyond, they are rounded up. Never more than `budget` bits in all;
// std::invalid_argument when even the cheapest choices are more.
std::vector<int> allocate(const std::vector<std::vector<Choice>>& choices, double budget);

}  // namespace oscar
