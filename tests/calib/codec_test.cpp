// Every codec of the table against its own rule in double, and what each refuses.
#include "libcalib/codecs/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/support/support.h"

namespace oscar::test {
namespace {

std::vector<float> decoded(const CodecInfo& codec, const std::vector<float>& rows, int dim,
                           const CodecOptions& options) {
  const auto n = static_cast<int64_t>(rows.size()) / dim;
  const auto codes = codec.encode(rows.data(), n, dim, options);
  std::vector<float> out(rows.size());
  codes->decode(0, n, out.data());
  return out;
}

std::vector<double> reference(const CodecInfo& codec, const std::vector<float>& rows, int dim,
                              const CodecOptions& options) {
  const std::vector<double> exact(rows.begin(), rows.end());
  std::vector<double> out(rows.size());
  codec.reference(exact.data(), static_cast<int64_t>(rows.size()) / dim, dim, options, out.data());
  return out;
}

// Equal to rounding, but for the rare element that sits on the border of two codes in one precision and not
// in the other.
void expect_same(const std::vector<float>& packed, const std::vector<double>& exact, double largest) {
  int64_t borders = 0;
  for (size_t i = 0; i < packed.size(); ++i) borders += std::abs(packed[i] - exact[i]) > 1e-5 * largest;
  EXPECT_LE(borders, static_cast<int64_t>(packed.size() / 1000));
}

TEST(Codec, PackedRowsEqualTheRuleInDouble) {
  for (const auto& codec : codec_table()) {
    for (const int dim : {4, 64, 128, 256}) {
      auto rows = normal(static_cast<size_t>(200 * dim), 7);
      for (int64_t r = 0; r < 200; r += 3) rows[static_cast<size_t>(r * dim + r % dim)] *= 40;  // outliers
      for (const int groups : {1, 4}) {
        if (groups > 1 && codec.name != "sglang-prefill") continue;
        for (const double clip : {0.0, 0.92, 0.96, 1.0}) {
          SCOPED_TRACE(fmt::format("{}, D = {}, G = {}, clip {}", codec.name, dim, groups, clip));
          const CodecOptions options{.groups = groups, .clip = clip};
          expect_same(decoded(codec, rows, dim, options), reference(codec, rows, dim, options), 160);
        }
      }
    }
  }
}

TEST(Codec, ReadsAnyRange) {
  const auto rows = normal(50 * 64, 3);
  for (const auto& codec : codec_table()) {
    const auto all = decoded(codec, rows, 64, {});
    const auto codes = codec.encode(rows.data(), 50, 64, {});
    std::vector<float> part(7 * 64);
    codes->decode(21, 7, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 21 * 64)) << codec.name;
  }
}

TEST(Codec, BitsAreThoseOfTheBytesHeld) {
  const auto rows = normal(10 * 128, 1);
  const auto bits = [&](const char* name, int groups) {
    const CodecOptions options{.groups = groups, .clip = 1};
    return 8.0 * static_cast<double>(find_codec(name).encode(rows.data(), 10, 128, options)->bytes()) /
           (10 * 128);
  };
  EXPECT_DOUBLE_EQ(bits("sglang-prefill", 1), 2.5);  // 32 + 8 bytes a row
  EXPECT_DOUBLE_EQ(bits("sglang-prefill", 4), 4.0);  // 32 + 32
  EXPECT_DOUBLE_EQ(bits("bf16", 1), 16);
  EXPECT_DOUBLE_EQ(bits("none", 1), 32);
}

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

TEST(Codec, Refusals) {
  const auto refused = [](const char* name, int dim, CodecOptions options, const char* part) {
    try {
      find_codec(name).encode(nullptr, 0, dim, options);
      ADD_FAILURE() << name << " took D = " << dim << ", G = " << options.groups << ", clip " << options.clip;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  for (const int dim : {0, 2, 3, 80, 96, 192}) refused("sglang-prefill", dim, {}, "powers of two");
  refused("sglang-prefill", 64, {.groups = 3, .clip = .9}, "3 groups do not divide the head dim 64");
  refused("sglang-prefill", 64, {.groups = 0, .clip = .9}, "0 groups");
  refused("sglang-prefill", 64, {.groups = 2, .clip = 0}, "2 groups without clipping");
  refused("sglang-prefill", 64, {.groups = 1, .clip = 1.5}, "clip ratio 1.5");
  refused("sglang-prefill", 64, {.groups = 1, .clip = NAN}, "clip ratio");
  refused("none", 64, {.groups = 2, .clip = 0}, "no groups");
  EXPECT_NO_THROW(find_codec("sglang-prefill").encode(nullptr, 0, 64, {.groups = 2, .clip = 1.0}));
  try {
    find_codec("int3");
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "unknown codec 'int3'; known: sglang-prefill, bf16, none");
  }
}

}  // namespace
}  // namespace oscar::test
