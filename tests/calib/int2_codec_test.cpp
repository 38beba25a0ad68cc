// The INT2 codecs of the serving engine and their relatives: what each rule promises.
#include <algorithm>
#include <cmath>
#include <map>

#include "tests/calib/codec_support.h"

namespace oscar::test {
namespace {

TEST(Codec, FourLevelsAreHeldExactlyAndUsedEvenly) {
  std::vector<float> rows;
  for (int i = 0; i < 64; ++i) rows.push_back(static_cast<float>(i % 4) - 1.0f);  // -1 0 1 2: scale 1, zero 1
  EXPECT_EQ(decoded(find_codec("sglang-prefill"), rows, 64, {}), rows);

  // A uniform row: the two outer levels stand for half a step each, so 1/6, 1/3, 1/3, 1/6.
  std::vector<float> ramp;
  for (int i = 0; i < 256; ++i) ramp.push_back(static_cast<float>(i - 128));
  const auto out = decoded(find_codec("sglang-prefill"), ramp, 256, {});
  std::map<float, int> histogram;
  for (const float value : out) ++histogram[value];
  ASSERT_EQ(histogram.size(), 4u);
  std::vector<int> counts;
  for (const auto& [value, count] : histogram) counts.push_back(count);
  EXPECT_NEAR(counts[0], 256 / 6.0, 2);
  EXPECT_NEAR(counts[1], 256 / 3.0, 2);
  EXPECT_NEAR(counts[2], 256 / 3.0, 2);
  EXPECT_NEAR(counts[3], 256 / 6.0, 2);
}

TEST(Codec, GroupsHaveTheirOwnRangeAndClippingLooksAtTheWholeRow) {
  std::vector<float> row(64, 0.5f);
  for (int i = 0; i < 16; ++i) row[static_cast<size_t>(i)] = i % 2 ? 100.0f : -100.0f;  // loud first group
  for (int i = 16; i < 64; ++i) row[static_cast<size_t>(i)] = i % 2 ? 1.0f : -1.0f;
  const auto& codec = find_codec("sglang-prefill");
  const auto four = decoded(codec, row, 64, {.groups = 4, .clip = 0});
  EXPECT_LT(relative_error(four, row), 1e-6);
  const auto one = decoded(codec, row, 64, {.groups = 1, .clip = 0});
  EXPECT_NEAR(std::abs(one[20]), 100.0f / 3, 1e-3);  // swallowed by the range of the loud group
  // Index trunc(.70 * 64) = 44 of the sorted magnitudes is still a quiet element: the loud group is cut to 1.
  const auto clipped = decoded(codec, row, 64, {.groups = 4, .clip = 0.70});
  EXPECT_NEAR(clipped[1], 1.0f, 1e-5);
}

TEST(Codec, RoundsTheRowToBfloat16First) {
  // 257 and 256 are one bfloat16: the range of the row becomes 256, exactly three steps of 85.33.
  const std::vector<float> row{0.0f, 257.0f, 85.3333333f, 170.6666667f};
  const auto out = decoded(find_codec("sglang-prefill"), row, 4, {});
  EXPECT_EQ(out[1], 256.0f);
}

TEST(Codec, ConstantAndZeroRowsComeBack) {
  const std::vector<float> zero(64, 0.0f), constant(64, 2.5f);
  const auto& codec = find_codec("sglang-prefill");
  EXPECT_EQ(decoded(codec, zero, 64, {.groups = 1, .clip = 0.96}), zero);
  EXPECT_LT(relative_error(decoded(codec, constant, 64, {}), constant), 1e-2);
}

// Mean squared error of a normal variable, in variances.
double normal_error(const char* codec) {
  const auto rows = normal(2000 * 256, 21);
  const double error = relative_error(decoded(find_codec(codec), rows, 256, {}), rows);
  return error * error;
}

TEST(LloydMaxCodecs, ErrorsOfANormalVariableAreThoseOfTheirSteps) {
  // Levels -+ step / 2 and -+ 3 step / 2; phi is the density, p the probability above the threshold t:
  // 1 - 2 step (phi(0) + 2 phi(t)) + step^2 (1/4 + 4 p).
  const auto error = [](double threshold, double step) {
    const auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); };
    return 1 - 2 * step * (density(0) + 2 * density(threshold)) +
           step * step * (0.25 + 4 * (std::erfc(threshold / std::sqrt(2.0)) / 2));
  };
  EXPECT_NEAR(normal_error("lloyd-max"), error(0.9957, 0.9957), 2e-3);
  EXPECT_NEAR(normal_error("nova-scalar-int2"), error(0.98106527, 0.98774), 2e-3);
  EXPECT_NEAR(normal_error("sglang-lloyd-max"), error(0.98106527, 1.16739), 2e-3);
  EXPECT_NEAR(normal_error("lloyd-max-wide"), error(1.16739, 1.16739), 2e-3);
  EXPECT_NEAR(error(0.9957, 0.9957), 0.1188, 1e-4);  // Max (1960), table II
  EXPECT_GT(normal_error("sglang-lloyd-max"), 1.2 * normal_error("lloyd-max"));
}

TEST(LloydMaxCodecs, ShiftAndScaleOfARowAreKept) {
  for (const char* name : {"lloyd-max", "nova-scalar-int2", "sglang-lloyd-max"}) {
    std::vector<float> row;
    for (int i = 0; i < 64; ++i) row.push_back(i % 2 ? 12.0f : 8.0f);  // mean 10, sigma 2
    const auto out = decoded(find_codec(name), row, 64, {});
    double mean = 0;
    for (const float x : out) mean += x / 64;
    EXPECT_NEAR(mean, 10, 1e-4) << name;
    const double step = (out[1] - out[0]) / 3 / 2;
    EXPECT_NEAR(step, name[0] == 'l' ? 0.9957 : name[0] == 'n' ? 0.98774 : 1.16739, 1e-4) << name;
  }
}

TEST(LloydMaxCodecs, ThresholdsAndTheFloorOfSigma) {
  std::vector<float> row;
  for (int i = 0; i < 64; ++i) row.push_back(i % 2 ? 1.0f : -1.0f);
  row[0] = -0.98828125f;  // between Lloyd-Max's .98107 sigma and the .9957 that is half way between levels
  row[1] = 0.98828125f;
  const auto level = [&](const char* codec, size_t i) { return decoded(find_codec(codec), row, 64, {})[i]; };
  EXPECT_NEAR(level("lloyd-max", 1), 0.9957 / 2, 1e-3);
  EXPECT_NEAR(level("lloyd-max", 3), 0.9957 * 1.5, 1e-3);
  EXPECT_NEAR(level("nova-scalar-int2", 1), 0.98774 * 1.5, 1e-3);
  EXPECT_NEAR(level("sglang-lloyd-max", 0), -1.16739 * 1.5, 1e-3);
  row.assign(64, 0.0f);
  EXPECT_NEAR(level("lloyd-max", 0), 0.9957e-4 / 2, 1e-9);
}

TEST(SglangFlush, RowsBelow64ChannelsAreSorted) {
  std::vector<float> row;
  for (int i = 0; i < 32; ++i) row.push_back(static_cast<float>(i % 2 ? i + 1 : -i - 1));
  EXPECT_FLOAT_EQ(std::ranges::max(decoded(find_codec("sglang-flush"), row, 32, {.groups = 1, .clip = 0.96})),
                  31);
}

TEST(SglangFlush, ThresholdIsTheUpperEndOfABisection) {
  // Magnitudes 1 to 64, each once: index 61 leaves at most 3 above. Six halvings of [0, 64] end on a whole
  // number, the least that 3 magnitudes exceed: 61. Prefill takes the one at index 61: 62.
  std::vector<float> row;
  for (int i = 0; i < 64; ++i) row.push_back(static_cast<float>(i % 2 ? i + 1 : -i - 1));
  const auto largest = [&](const char* codec) {
    return std::ranges::max(decoded(find_codec(codec), row, 64, {.groups = 1, .clip = 0.96}));
  };
  EXPECT_FLOAT_EQ(largest("sglang-flush"), 61);
  EXPECT_FLOAT_EQ(largest("sglang-fused"), 61);
  EXPECT_FLOAT_EQ(largest("sglang-prefill"), 62);
}

TEST(SglangFused, RowsStayFloat32) {
  const std::vector<float> row{0.0f, 257.0f, 85.3333333f, 170.6666667f};
  EXPECT_EQ(decoded(find_codec("sglang-fused"), row, 4, {})[1], 257.0f);
  EXPECT_EQ(decoded(find_codec("sglang-flush"), row, 4, {})[1], 256.0f);
}

}  // namespace
}  // namespace oscar::test
