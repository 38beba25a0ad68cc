// Budgets: what is chosen is measured, not promised.
#include "libcalib/codecs/codec.h"
#include "tests/calib/method_support.h"

namespace oscar::test {
namespace {

// Small codebooks keep training short. A row of one index of 4 bits takes a whole byte.
std::string small(const std::string& options) {
  return "budget:shapes=32x4+8x4+4x4+2x4+1x4" + options;
}

struct Spent {
  double bits = 0, channels = 0, loss = 0;
  double mean() const { return bits / channels; }
};
// Bits of really packed rows; each item of the plan must have said so.
Spent spent(const FitResult& result, Side side) {
  Spent sum;
  for (const PlanItem& item : result.plan) {
    if (item.side != side) continue;
    const auto& layer = method_layers().at(item.layer);
    const HeadCode& code = side_of(result.codes, side).of(item.layer, item.head);
    const auto rows = coded_rows(layer, side, item.head, code.transform);
    const auto packed = code.codec->encode(rows.data(), kTokens, 32, code.options);
    const double bits = 8.0 * static_cast<double>(packed->bytes()) / static_cast<double>(kTokens);
    EXPECT_DOUBLE_EQ(item.bits, bits / 32);
    sum.bits += bits;
    sum.channels += 32;
    sum.loss += item.loss;
  }
  return sum;
}

TEST(Budget, IsNeverExceededInMeasuredBits) {
  const std::vector<std::pair<std::string, double>> cases{
      {small(":bits=0.25"), 0.25},      {small(":bits=0.7"), 0.7},       {small(":bits=2"), 2},
      {small(":bits=1.5:norm=1"), 1.5}, {small(":bits=3"), 3},           {"budget-int2", 4},
      {"budget-int2:bits=7", 7},        {"budget-int2:bits=11.9", 11.9}, {"budget-int2:bits=16", 16}};
  for (const auto& [name, bits] : cases) {
    const FitResult result = fitted(name);
    ASSERT_EQ(result.plan.size(), 8u) << name;
    const Spent k = spent(result, Side::K), v = spent(result, Side::V);
    EXPECT_LE((k.bits + v.bits) / (k.channels + v.channels), bits * (1 + 1e-12)) << name;
    if (result.uniform_loss > 0) {
      EXPECT_LE(k.loss + v.loss, result.uniform_loss * (1 + 1e-12)) << name;
    }
  }
  const FitResult two = fitted(small(":bits=2"));
  EXPECT_LT(spent(two, Side::K).loss + spent(two, Side::V).loss, 0.95 * two.uniform_loss);
}

TEST(Budget, KeysAndValuesOfTheirOwn) {
  const FitResult result = fitted(small(":bits=1") + "/" + small(":bits=2"));
  EXPECT_LE(spent(result, Side::K).mean(), 1);
  EXPECT_LE(spent(result, Side::V).mean(), 2);
  EXPECT_GT(spent(result, Side::V).mean(), 1.5);
  EXPECT_GT(spent(result, Side::K).mean(), 0.75) << "values took bits of the keys";
  const FitResult keys = fitted(small(":bits=1") + "/oscar");
  EXPECT_EQ(keys.plan.size(), 4u);
  EXPECT_LE(spent(keys, Side::K).mean(), 1);
}

TEST(Budget, MoreBitsNeverLoseMore) {
  double before = INFINITY;
  for (const char* bits : {":bits=0.5", ":bits=1", ":bits=2", ":bits=3"}) {
    const FitResult result = fitted(small(bits));
    const double loss = spent(result, Side::K).loss + spent(result, Side::V).loss;
    EXPECT_LT(loss, before) << bits;
    before = loss;
  }
}

TEST(Budget, HeadsOfAnInt2LayerShareTheirCode) {
  const FitResult result = fitted("budget-int2:bits=7");
  // What would pay for one head of a layer pays for none.
  for (const auto& item : fitted("budget-int2:bits=5.6").plan) EXPECT_EQ(item.shape, "sglang-prefill");
  int exact = 0;
  for (const Side side : {Side::K, Side::V}) {
    for (const auto& [id, heads] : side_of(result.codes, side).layers) {
      ASSERT_EQ(heads.size(), 2u);
      EXPECT_EQ(heads[0].codec, heads[1].codec);
      exact += heads[0].codec->name == "bf16";
    }
  }
  EXPECT_EQ(exact, 1) << "7 bits pay for one of four at 16, the others at 4";
}

// Values of 48 channels cannot take codes of 32: the best uniform code is the best of those that both can.
TEST(Budget, UniformCodesAreThoseThatEveryHeadCanTake) {
  std::map<int, LayerStatistics> layers;
  layers[2] = full_statistics(shape_of(2, 4, 2, 32, 48), kTokens, 200);
  const auto result = [&](const char* name) {
    return fit({layers, {}}, parse_method(name), {.threads = 1, .progress = {}});
  };
  const FitResult both = result("budget:shapes=32x4+4x4"), one = result("budget:shapes=4x4");
  EXPECT_DOUBLE_EQ(both.uniform_loss, one.uniform_loss);
  double loss = 0;
  for (const auto& item : one.plan) loss += item.loss;
  EXPECT_DOUBLE_EQ(one.uniform_loss, loss);
}

TEST(Budget, RefusesWhatTheCheapestCodesExceed) {
  const auto refusal = [](const std::string& name) {
    return message_of<std::invalid_argument>([&] { fitted(name); });
  };
  EXPECT_NE(refusal(small(":bits=0.2"))
                .find("bits=0.2: the least that these codes can take is 0.25 bits a channel"),
            std::string::npos)
      << refusal(small(":bits=0.2"));
  EXPECT_NE(refusal("budget-int2:bits=3").find("is 4 bits a channel"), std::string::npos);
  EXPECT_NE(refusal(small(":bits=0.2") + "/" + small(":bits=2")).find("0.25"), std::string::npos);
  EXPECT_NE(refusal(small(":bits=0.6:norm=1")).find("is 0.75 bits a channel"), std::string::npos);
}

}  // namespace
}  // namespace oscar::test
