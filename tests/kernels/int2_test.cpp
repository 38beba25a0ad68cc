#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<uint32_t> scale_zero;  // bit patterns: NaN compares equal to itself
  bool operator==(const Encoded&) const = default;
};

template <typename Encode>
Encoded encode(Encode function, const int2::Rule& rule, const std::vector<float>& rows) {
  const int64_t n = static_cast<int64_t>(rows.size()) / rule.dim;
  Encoded out{std::vector<uint8_t>(rows.size() / 4, 0xee), {}};
  std::vector<float> scale_zero(n * 2 * rule.groups);
  function(rule, rows.data(), n, out.codes.data(), scale_zero.data());
  out.scale_zero.resize(scale_zero.size());
  std::memcpy(out.scale_zero.data(), scale_zero.data(), 4 * scale_zero.size());
  return out;
}

void expect_same(const int2::Rule& rule, const std::vector<float>& rows) {
  const Encoded expected = encode(int2::encode_reference, rule, rows);
  std::vector<float> scale_zero(expected.scale_zero.size());
  std::memcpy(scale_zero.data(), expected.scale_zero.data(), 4 * scale_zero.size());
  std::vector<float> decoded(rows.size());
  const int64_t n = static_cast<int64_t>(rows.size()) / rule.dim;
  int2::decode_reference(rule.dim, rule.groups, expected.codes.data(), scale_zero.data(), n, decoded.data());
  each_level([&](const KernelTable& level) {
    EXPECT_TRUE(encode(level.int2_encode, rule, rows) == expected)
        << "dim " << rule.dim << " groups " << rule.groups << " clip " << rule.clip << " bf16 "
        << rule.round_bf16;
    std::vector<float> rows_back(rows.size(), -1);
    level.int2_decode(rule.dim, rule.groups, expected.codes.data(), scale_zero.data(), n, rows_back.data());
    EXPECT_EQ(std::memcmp(rows_back.data(), decoded.data(), 4 * decoded.size()), 0) << "dim " << rule.dim;
  });
}

TEST(Int2, ClipIndexTable) {
  EXPECT_EQ(int2::clip_index(.96, 128), 122);
  EXPECT_EQ(int2::clip_index(.92, 128), 117);
  EXPECT_EQ(int2::clip_index(.96, 64), 61);
  EXPECT_EQ(int2::clip_index(.92, 64), 58);
  EXPECT_EQ(int2::clip_index(.96, 256), 245);
  EXPECT_EQ(int2::clip_index(.92, 256), 235);
  EXPECT_EQ(int2::clip_index(1, 128), 127);
  EXPECT_EQ(int2::clip_index(7, 128), 127);
  EXPECT_EQ(int2::clip_index(1e300, 128), 127);
  EXPECT_EQ(int2::clip_index(0, 128), -1);
  EXPECT_EQ(int2::clip_index(-1, 128), -1);
  EXPECT_EQ(int2::clip_index(std::nan(""), 128), -1);
}

// Levels 0..3 exactly: scale 1, zero -0; bytes worked out by hand.
TEST(Int2, PackingOrder) {
  const std::vector<float> row = {3, 0, 1, 2, 2, 2, 0, 3, 1, 3, 3, 0, 0, 1, 2, 2};
  std::vector<uint8_t> codes(4);
  std::vector<float> scale_zero(2), back(16);
  int2::encode_reference({.dim = 16}, row.data(), 1, codes.data(), scale_zero.data());
  EXPECT_EQ(codes, (std::vector<uint8_t>{3 | 2 << 2 | 1 << 4 | 0 << 6, 0 | 2 << 2 | 3 << 4 | 1 << 6,
                                         1 | 0 << 2 | 3 << 4 | 2 << 6, 2 | 3 << 2 | 0 << 4 | 2 << 6}));
  EXPECT_EQ(scale_zero, (std::vector<float>{1, 0}));
  int2::decode_reference(16, 1, codes.data(), scale_zero.data(), 1, back.data());
  EXPECT_EQ(back, row);
  expect_same({.dim = 16}, row);
}

TEST(Int2, GroupsHaveTheirOwnScaleAndZero) {
  const std::vector<float> row = {-1, 0, 1, 2, 10, 12, 14, 16};
  std::vector<uint8_t> codes(2);
  std::vector<float> scale_zero(4), back(8);
  int2::encode_reference({.dim = 8, .groups = 2}, row.data(), 1, codes.data(), scale_zero.data());
  EXPECT_EQ(scale_zero, (std::vector<float>{1, 1, 2, -5}));
  int2::decode_reference(8, 2, codes.data(), scale_zero.data(), 1, back.data());
  EXPECT_EQ(back, row);
}

TEST(Int2, ClipTakesTheThresholdOfTheWholeRow) {
  std::vector<float> row(64);
  for (int i = 0; i < 64; ++i) row[i] = static_cast<float>(i % 2 ? i + 1 : -i - 1);
  std::vector<uint8_t> codes(16);
  std::vector<float> scale_zero(2);
  int2::encode_reference({.dim = 64, .clip = .96}, row.data(), 1, codes.data(), scale_zero.data());
  EXPECT_EQ(scale_zero[0], (62.0f + 62.0f) / 3);  // index 61 of 1..64
  EXPECT_EQ(scale_zero[1], 62.0f / scale_zero[0]);
}

TEST(Int2, HalfwayLevelsRoundUp) {
  const std::vector<float> row = {0, 0.5f, 1.5f, 2.5f, 3, 0.25f, 1.25f, 2.25f};
  std::vector<uint8_t> codes(2);
  std::vector<float> scale_zero(2), back(8);
  int2::encode_reference({.dim = 8}, row.data(), 1, codes.data(), scale_zero.data());
  int2::decode_reference(8, 1, codes.data(), scale_zero.data(), 1, back.data());
  EXPECT_EQ(back, (std::vector<float>{0, 1, 2, 3, 3, 0, 1, 2}));
  expect_same({.dim = 8}, row);
}

TEST(Int2, Bfloat16RoundsToEven) {
  // 1 + 2^-8 is halfway between 1 and 1 + 2^-7; 1 + 3 * 2^-8 halfway between 1 + 2^-7 and 1 + 2^-6.
  const std::vector<float> row = {0, 3, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 0, 0, 0, 1 + 3 * 0x1p-8f};
  std::vector<uint8_t> codes(2);
  std::vector<float> scale_zero(4);
  int2::encode_reference({.dim = 8, .groups = 2}, row.data(), 1, codes.data(), scale_zero.data());
  EXPECT_EQ(scale_zero[2], (1 + 0x1p-6f) / 3);
  expect_same({.dim = 8, .groups = 2}, row);
}

TEST(Int2, SameBytesAsTheReference) {
  for (const int dim : {4, 8, 12, 32, 64, 80, 96, 112, 128, 192, 256, 512}) {
    for (const int64_t n : {1, 3, 40}) {
      auto rows = normal(n * dim, dim + n);
      for (size_t i = 0; i < rows.size(); i += 37) rows[i] *= 50;  // outliers
      for (const int groups : {1, 2, 4}) {
        if (dim % groups) continue;
        for (const double clip : {0., .5, .92, .96, 1.}) {
          for (const bool bf16 : {true, false}) expect_same({dim, groups, clip, bf16}, rows);
        }
      }
    }
  }
  expect_same({60, 5, .9, true}, normal(60 * 7, 1));  // groups that end inside a quarter of the row
}

TEST(Int2, TiesConstantsAndSmallIntegers) {
  const int dim = 64;
  std::vector<float> rows;
  for (const float value : {0.0f, -0.0f, 1.0f, -3.5f, 1e-9f, 1e30f, 1e-40f})
    rows.insert(rows.end(), dim, value);
  for (int r = 0; r < 20; ++r) {
    for (int i = 0; i < dim; ++i)
      rows.push_back(static_cast<float>((i * 7 + r * i) % (r + 1)) - static_cast<float>(r / 2));
  }
  for (int i = 0; i < dim; ++i) rows.push_back(i % 2 ? 0.0f : -0.0f);
  for (const double clip : {0., .1, .92, 1.}) {
    for (const bool bf16 : {true, false}) {
      expect_same({dim, 1, clip, bf16}, rows);
      expect_same({dim, 4, clip, bf16}, rows);
    }
  }
}

// No promise but the same bytes everywhere, and no crash.
TEST(Int2, NanAndInfinity) {
  const int dim = 80;
  auto rows = normal(dim * 6, 5);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  rows[3] = nan;
  rows[dim + 70] = inf;
  rows[2 * dim] = -inf;
  rows[2 * dim + 1] = inf;
  rows[3 * dim + 5] = -nan;
  rows[3 * dim + 6] = inf;
  for (int i = 0; i < dim; ++i) rows[4 * dim + i] = nan;
  for (int i = 0; i < dim; ++i) rows[5 * dim + i] = i % 2 ? inf : 3e38f;
  for (const double clip : {0., .5, .98, 1.}) {
    for (const bool bf16 : {true, false}) expect_same({dim, 1, clip, bf16}, rows);
  }
}

TEST(Int2, ThreadsDoNotMatter) {
  const auto rows = normal(128 * 3000, 9);
  const int threads = omp_get_max_threads();
  each_level([&](const KernelTable& level) {
    omp_set_num_threads(1);
    const Encoded one = encode(level.int2_encode, {.dim = 128, .clip = .96}, rows);
    omp_set_num_threads(4);
    EXPECT_TRUE(encode(level.int2_encode, {.dim = 128, .clip = .96}, rows) == one);
  });
  omp_set_num_threads(threads);
}

TEST(Int2, RefusesShapesThatTheLayoutCannotHold) {
  float row[64] = {}, scale_zero[64];
  uint8_t codes[16];
  EXPECT_THROW(int2::encode({.dim = 6}, row, 1, codes, scale_zero), std::invalid_argument);
  EXPECT_THROW(int2::encode({.dim = 64, .groups = 3}, row, 1, codes, scale_zero), std::invalid_argument);
  EXPECT_THROW(int2::encode({.dim = 64, .groups = 0}, row, 1, codes, scale_zero), std::invalid_argument);
  EXPECT_THROW(int2::decode(0, 1, codes, scale_zero, 1, row), std::invalid_argument);
}

}  // namespace
}  // namespace oscar::test
