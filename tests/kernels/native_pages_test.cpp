// Native INT2 pages: every code and every piece of metadata has a place of its own, and comes back from it.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "kernels/half.h"
#include "kernels/int2.h"

namespace oscar::int2 {
namespace {

constexpr int kDims[] = {32, 64, 96, 128, 192, 256};

TEST(NativePages, EveryCodeHasAPlaceOfItsOwn) {
  for (const int dim : kDims) {
    for (const bool keys : {true, false}) {
      std::set<std::pair<int, int>> places;
      for (int token = 0; token < kPageTokens; ++token) {
        for (int i = 0; i < dim; ++i) {
          const Place at = keys ? native_key(dim, token, i) : native_value(token, i);
          ASSERT_GE(at.byte, 0);
          ASSERT_LT(at.byte, 16 * dim) << "dim " << dim << " token " << token << " channel " << i;
          ASSERT_TRUE(at.shift == 0 || at.shift == 2 || at.shift == 4 || at.shift == 6);
          ASSERT_TRUE(places.insert({at.byte, at.shift}).second) << "dim " << dim << " token " << token;
        }
      }
      EXPECT_EQ(places.size(), static_cast<size_t>(kPageTokens * dim));
    }
  }
}

TEST(NativePages, MetadataFollowsTheCodes) {
  std::set<int> places;
  for (int group = 0; group < 4; ++group) {
    for (int token = 0; token < kPageTokens; ++token) {
      const int at = native_metadata(128, token, group);
      EXPECT_EQ(at % 4, 0);
      EXPECT_GE(at, 16 * 128);
      EXPECT_LT(at, native_bytes(128, 4));
      EXPECT_TRUE(places.insert(at).second);
    }
  }
}

TEST(NativePages, RowsComeBackWithinTheRoundingOfTheirMetadata) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const int groups : {1, 2, dim / 32}) {
      std::vector<float> rows(static_cast<size_t>(50 * dim)), want(rows.size()), got(rows.size());
      for (float& x : rows) x = normal(random) + 3;
      std::vector<uint8_t> codes(static_cast<size_t>(50 * dim / 4)), block(native_bytes(dim, groups), 0xab);
      std::vector<float> scale_zero(static_cast<size_t>(100 * groups));
      encode_reference({dim, groups, 0.96}, rows.data(), 50, codes.data(), scale_zero.data());
      decode_reference(dim, groups, codes.data(), scale_zero.data(), 50, want.data());
      for (const bool keys : {true, false}) {
        pack_native(keys, dim, groups, codes.data(), scale_zero.data(), 7, 50, block.data());
        unpack_native(keys, dim, groups, block.data(), 7, 50, got.data());
        for (size_t i = 0; i < rows.size(); ++i)
          ASSERT_NEAR(got[i], want[i], 0.01) << "dim " << dim << " at " << i;
      }
    }
  }
}

TEST(NativePages, OtherTokensAreLeftAlone) {
  std::vector<uint8_t> codes(32, 0x1b), block(native_bytes(128, 1), 0x5a), before = block;
  const float scale_zero[2] = {1, 0};
  pack_native(true, 128, 1, codes.data(), scale_zero, 63, 1, block.data());
  int changed = 0;
  for (size_t i = 0; i < block.size(); ++i) changed += block[i] != before[i];
  EXPECT_GT(changed, 0);
  EXPECT_LE(changed, 36);  // 32 bytes of codes, 4 of metadata
}

TEST(Half, IsTheNearestForEveryValueAndBetween) {
  for (uint32_t bits = 0; bits < 0x7c00u; ++bits) {
    const float value = half_to_float(static_cast<uint16_t>(bits));
    ASSERT_EQ(float_to_half(value), bits);
    ASSERT_EQ(float_to_half(-value), bits | 0x8000u);
    if (bits + 1 == 0x7c00u) break;
    const float next = half_to_float(static_cast<uint16_t>(bits + 1)), middle = (value + next) / 2;
    ASSERT_EQ(float_to_half(middle), bits + (bits & 1)) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.f)), bits) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), bits + 1) << bits;
  }
  EXPECT_EQ(float_to_half(1e9f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.f), 0x7bff);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(NAN))));
}

}  // namespace
}  // namespace oscar::int2
