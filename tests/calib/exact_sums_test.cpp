// Sums that do not depend on order or grouping, checked against integers of 128 bits and by shuffling.
#include "libcalib/exact_sums.h"

#include <algorithm>
#include <random>

#include "libcalib/proxy.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

const LayerShape kShape = test::shape_of(3, 2, 1, 2, 2);

// A LayerSums whose qq are these four numbers, and 0 elsewhere.
LayerSums sums_of(const std::array<double, 4>& values) {
  LayerSums sums(kShape);
  std::ranges::copy(values, sums.values(Sum::qq).begin());
  sums.tokens = 1;
  return sums;
}
void expect_same_bits(const LayerSums& a, const LayerSums& b) {
  for (const SumInfo& info : sum_table()) {
    const auto x = a.values(info.sum), y = b.values(info.sum);
    ASSERT_EQ(x.size(), y.size());
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size_bytes()), 0) << info.name;
  }
  EXPECT_EQ(a.tokens, b.tokens);
}

// Summands of very different sizes and signs, some of which cancel to the last bit.
std::vector<std::array<double, 4>> hard_summands(int spread) {
  std::mt19937_64 random(static_cast<uint64_t>(spread));
  const auto number = [&] {
    const double mantissa = static_cast<double>(random() >> 11) - 4503599627370496.0;
    return std::ldexp(mantissa, static_cast<int>(random() % static_cast<uint64_t>(2 * spread + 1)) - spread);
  };
  std::vector<std::array<double, 4>> out;
  for (int i = 0; i < 200; ++i) {
    out.push_back({number(), number(), number(), number()});
    if (i % 3 == 0) out.push_back({-out.back()[0], -out.back()[1] * (1 + 1e-16), 1e-300, 0});
  }
  return out;
}

TEST(ExactSums, OneDoubleForOneSetOfSummands) {
  for (const int spread : {0, 20, 60, 200}) {
    auto summands = hard_summands(spread);
    std::mt19937_64 random(7);
    ExactSums first(kShape);
    for (const auto& x : summands) first.add(sums_of(x));
    const LayerSums expected = first.rounded();
    for (int trial = 0; trial < 20; ++trial) {
      std::shuffle(summands.begin(), summands.end(), random);
      const size_t workers = 1 + random() % 5;
      std::vector<ExactSums> shards(workers, ExactSums(kShape));
      for (const auto& x : summands) shards[random() % workers].add(sums_of(x));
      // As files hold it: the nearest doubles, and what they leave.
      ExactSums merged(kShape);
      for (const ExactSums& shard : shards) {
        merged.add(shard.rounded());
        for (const LayerSums& rest : shard.remainders()) merged.add(rest);
      }
      expect_same_bits(merged.rounded(), expected);
    }
  }
}

TEST(ExactSums, IsTheNearestDouble) {
  // Within 128 bits the exact sum is an integer; the conversion of the compiler rounds to nearest, ties to
  // even.
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    ExactSums exact(kShape);
    __int128 total = 0;
    for (int i = 0; i < 50; ++i) {
      const auto value = static_cast<double>(static_cast<int64_t>(random()) >> 11) *
                         std::ldexp(1, static_cast<int>(random() % 60));
      total += static_cast<__int128>(value);
      exact.add(sums_of({value, 0, 0, 0}));
    }
    EXPECT_EQ(exact.rounded().values(Sum::qq)[0], static_cast<double>(total));
  }
}

TEST(ExactSums, TiesLookAtWhatIsBelow) {
  const double one = 1, half_ulp = std::ldexp(1, -53), tiny = std::ldexp(1, -140);
  const auto sum = [](std::initializer_list<double> values) {
    ExactSums exact(kShape);
    for (const double x : values) exact.add(sums_of({x, 0, 0, 0}));
    return exact.rounded().values(Sum::qq)[0];
  };
  EXPECT_EQ(sum({one, half_ulp}), one);
  EXPECT_EQ(sum({one, half_ulp, tiny}), std::nextafter(one, 2));
  EXPECT_EQ(sum({tiny, one, half_ulp}), std::nextafter(one, 2));
  EXPECT_EQ(sum({one, half_ulp, -tiny}), one);
  EXPECT_EQ(sum({one, -one, tiny}), tiny);
  EXPECT_EQ(sum({}), 0);
}

TEST(ExactSums, RemaindersAreWhatRoundingLeft) {
  ExactSums exact(kShape);
  exact.add(sums_of({1, 2, 3, 4}));
  EXPECT_TRUE(exact.remainders().empty());
  exact.add(sums_of({std::ldexp(1, -80), 0, std::ldexp(1, -60), 0}));
  const auto rest = exact.remainders();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].values(Sum::qq)[0], std::ldexp(1, -80));
  EXPECT_EQ(rest[0].values(Sum::qq)[1], 0);
  EXPECT_EQ(rest[0].tokens, 0);
  EXPECT_EQ(exact.rounded().tokens, 2);
  EXPECT_THROW(exact.add(LayerSums(test::shape_of(4, 2, 1, 2, 2))), std::invalid_argument);
}

TEST(ExactSums, TheSecondPassDoesNotDependOnOrderOrThreads) {
  const LayerShape shape = test::shape_of(1, 4, 2, 8, 12);
  std::vector<test::Rows> sequences;
  LayerSums sums(shape);
  for (uint64_t i = 0; i < 7; ++i) {
    sequences.push_back(test::rows_of(shape, 40 + 13 * static_cast<int64_t>(i), i));
    const auto& r = sequences.back();
    sums.add_rows(r.q.data(), r.k.data(), r.v.data(), nullptr, r.tokens);
  }
  const auto passed = [&](bool backwards, int threads) {
    LayerSums out = sums;
    add_proxy(out, 7, threads, [&](int64_t i) {
      const auto& r = sequences[static_cast<size_t>(backwards ? 6 - i : i)];
      return RowsOfSequence{r.tokens, r.k.data(), r.v.data(), {}};
    });
    return out;
  };
  const LayerSums one = passed(false, 1);
  EXPECT_GT(one.scalar(Sum::proxy_weight, 1), 0);
  expect_same_bits(passed(true, 1), one);
  expect_same_bits(passed(true, 3), one);
}

}  // namespace
}  // namespace oscar
