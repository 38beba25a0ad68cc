#include "libcalib/allocation.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace oscar {
namespace {

using Items = std::vector<std::vector<Choice>>;

double bits(const Items& items, const std::vector<int>& chosen) {
  double sum = 0;
  for (size_t i = 0; i < items.size(); ++i) sum += items[i][static_cast<size_t>(chosen[i])].bits;
  return sum;
}
double loss(const Items& items, const std::vector<int>& chosen) {
  double sum = 0;
  for (size_t i = 0; i < items.size(); ++i) sum += items[i][static_cast<size_t>(chosen[i])].loss;
  return sum;
}
// All combinations.
double least_loss(const Items& items, double budget) {
  std::vector<int> chosen(items.size(), 0);
  double best = INFINITY;
  const std::function<void(size_t)> walk = [&](size_t i) {
    if (i == items.size()) {
      if (bits(items, chosen) <= budget) best = std::min(best, loss(items, chosen));
      return;
    }
    for (size_t c = 0; c < items[i].size(); ++c) {
      chosen[i] = static_cast<int>(c);
      walk(i + 1);
    }
  };
  walk(0);
  return best;
}
// The same over budgets of half bits, for many items.
double least_loss_of_many(const Items& items, double budget) {
  std::vector<double> best(static_cast<size_t>(2 * budget) + 1, 0);
  for (const auto& choices : items) {
    std::vector<double> next(best.size(), INFINITY);
    for (size_t b = 0; b < best.size(); ++b) {
      for (const Choice& choice : choices) {
        const auto cost = static_cast<size_t>(2 * choice.bits);
        if (cost <= b) next[b] = std::min(next[b], best[b - cost] + choice.loss);
      }
    }
    best = next;
  }
  return best.back();
}
Items random_items(uint64_t seed, int count) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> scale(0.1, 10), noise(0.7, 1.3);
  Items items;
  for (int i = 0; i < count; ++i) {
    auto& choices = items.emplace_back();
    const double weight = scale(engine);
    for (const double b : {4., 1., 2., 0.5})
      choices.push_back({b, weight * std::exp2(-1.5 * b) * noise(engine)});
  }
  return items;
}

TEST(Allocation, NeverExceedsTheBudgetAndFindsTheLeastLoss) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Items items = random_items(seed, 6);
    for (const double budget : {3.0, 4.5, 9.0, 13.0, 24.0, 100.0}) {
      const auto chosen = allocate(items, budget);
      EXPECT_LE(bits(items, chosen), budget);
      EXPECT_LE(loss(items, chosen), (1 + 1e-12) * least_loss(items, budget)) << seed << ' ' << budget;
    }
  }
}

TEST(Allocation, SpendsWhereItSavesMost) {
  const Items items{{{1, 1}, {2, 0.5}}, {{1, 100}, {2, 50}}, {{1, 10}, {2, 5}}};
  EXPECT_EQ(allocate(items, 4), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(allocate(items, 5), (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(allocate(items, 5.5), (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(allocate(items, 6), (std::vector<int>{1, 1, 1}));
}

TEST(Allocation, ChoicesThatCostMoreAndLoseMoreAreNotTaken) {
  const Items items{{{2, 5}, {1, 1}, {3, 0.9}}};
  EXPECT_EQ(allocate(items, 2.5), (std::vector<int>{1}));
  EXPECT_EQ(allocate(items, 3), (std::vector<int>{2}));
}

TEST(Allocation, BeatsTheUniformChoice) {
  const Items items = random_items(7, 180);
  std::vector<int> uniform(items.size(), 2);  // 2 bits each
  const double least = least_loss_of_many(items, 2.0 * 180), found = loss(items, allocate(items, 2.0 * 180));
  EXPECT_NEAR(found, least, 1e-12 * least);
  EXPECT_LT(found, 0.9 * loss(items, uniform));
}

// Costs without a common unit: rounded up, so a little of the budget may stay, but never too much is spent.
TEST(Allocation, UnevenCosts) {
  std::mt19937_64 engine(5);
  std::uniform_real_distribution<double> factor(0.5, 2);
  Items items = random_items(9, 8);
  for (auto& choices : items) {
    for (Choice& choice : choices) choice.bits *= 1000 * factor(engine);
  }
  for (const double budget : {9000.0, 12345.6, 20000.0, 1e9}) {
    const auto chosen = allocate(items, budget);
    EXPECT_LE(bits(items, chosen), budget);
    EXPECT_LE(loss(items, chosen), 1.01 * least_loss(items, budget)) << budget;
  }
}

TEST(Allocation, RefusesABudgetThatBuysNothing) {
  EXPECT_THROW(allocate({{{1, 1}}, {{2, 1}}}, 2.9), std::invalid_argument);
}

}  // namespace
}  // namespace oscar
