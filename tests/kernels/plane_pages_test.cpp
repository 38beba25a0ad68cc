// Pages of bit planes: every bit has a place of its own, comes back from it, and the order of channels and
// the lengths of planes are those that cost least.
#include "kernels/plane_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "kernels/half.h"
#include "kernels/write.h"

namespace oscar {
namespace {

struct Shape {
  int dim, planes[4];
};
constexpr Shape kShapes[] = {{64, {64, 40, 16, 8}},    {64, {64, 64, 64, 64}},    {64, {8, 0, 0, 0}},
                             {96, {96, 48, 24, 8}},    {128, {128, 80, 32, 16}},  {128, {128, 128, 0, 0}},
                             {128, {120, 0, 0, 0}},    {128, {128, 112, 96, 80}}, {192, {192, 96, 48, 24}},
                             {256, {256, 160, 64, 32}}};

SideFormat side_of(const Shape& shape, bool norm) {
  SideFormat side{CodeKind::planes, 1, norm};
  std::copy_n(shape.planes, 4, side.planes);
  return side;
}
CacheFormat format_of(const Shape& shape, bool norm, int kv_heads = 2) {
  return {CacheLayout::native, shape.dim, kv_heads, 2, side_of(shape, norm), side_of(shape, norm)};
}

// Heads with as many channels in each plane as there is room for, and with fewer.
std::vector<uint8_t> some_bits(const Shape& shape, int heads) {
  std::vector<uint8_t> bits;
  for (int h = 0; h < heads; ++h) {
    for (int c = 0; c < shape.dim; ++c) {
      bits.push_back(static_cast<uint8_t>(
          std::count_if(shape.planes, shape.planes + 4, [&](int n) { return c < n - 3 * h; })));
    }
  }
  return bits;
}

TEST(PlanePages, EveryBitHasAPlaceOfItsOwn) {
  for (const Shape& shape : kShapes) {
    ASSERT_TRUE(check_format(format_of(shape, false)).ok()) << check_format(format_of(shape, false)).what;
    for (const bool keys : {true, false}) {
      std::set<std::pair<int, int>> places;
      for (int token = 0; token < 64; ++token) {
        for (int plane = 0; plane < 4; ++plane) {
          for (int channel = 0; channel < shape.planes[plane]; ++channel) {
            const PlaneBit at = plane_bit(keys, shape.planes, token, channel, plane);
            ASSERT_GE(at.byte, 0);
            ASSERT_LT(at.byte, plane_bytes(shape.planes, false));
            ASSERT_TRUE(at.bit >= 0 && at.bit < 8);
            ASSERT_TRUE(places.insert({at.byte, at.bit}).second)
                << "dim " << shape.dim << " token " << token << " channel " << channel << " plane " << plane;
          }
        }
      }
      EXPECT_GE(plane_norm_byte(shape.planes, 0), plane_bytes(shape.planes, false));
      EXPECT_LT(plane_norm_byte(shape.planes, 63), plane_bytes(shape.planes, true));
    }
  }
}

// The places that kernels count with are those of the bits.
TEST(PlanePages, PlacesAreWhereTheBitsAre) {
  for (const Shape& shape : kShapes) {
    const int pairs = pair_chunks(shape.planes);
    for (const bool single : {false, true}) {
      const int per_chunk = single ? kChunkSingles : kChunkPairs;
      for (int s = 0; s < per_chunk * (single ? single_chunks(shape.planes) : pairs); ++s) {
        const PlanePlace place = single ? single_place(shape.planes, s) : pair_place(shape.planes, s);
        if (place.channel < 0) continue;
        ASSERT_LT(place.channel, shape.planes[place.plane]);
        const int chunk = kPlaneChunk * (s / per_chunk + (single ? pairs : 0)), within = s % per_chunk;
        for (const int token : {0, 13, 63}) {
          const PlaneBit k = plane_bit(true, shape.planes, token, place.channel, place.plane);
          EXPECT_EQ(k.byte, chunk + 16 * (4 * (token / 8) + within / 4 % 4) + token % 8 / 2 * 4 + within % 4);
          EXPECT_EQ(k.bit, 4 * (token % 2) + within / 16 * (single ? 1 : 2));
          const PlaneBit v = plane_bit(false, shape.planes, token, place.channel, place.plane);
          EXPECT_EQ(v.byte, chunk + 16 * (4 * (within % 8) + token / 16) + token % 16);
          EXPECT_EQ(v.bit, within / 8 * (single ? 1 : 2));
          if (!single) {
            const PlaneBit above = plane_bit(true, shape.planes, token, place.channel, place.plane + 1);
            EXPECT_EQ(above.byte, k.byte);
            EXPECT_EQ(above.bit, k.bit + 1);
          }
        }
      }
    }
  }
}

TEST(PlanePages, RowsComeBackAndOtherTokensAreLeftAlone) {
  std::mt19937 random(3);
  constexpr int kHeads = 2, kFirst = 5, kTokens = 41;
  for (const Shape& shape : kShapes) {
    const int dim = shape.dim;
    const std::vector<uint8_t> bits = some_bits(shape, kHeads);
    std::vector<float> steps(bits.size()), norms(kTokens), rows(static_cast<size_t>(kTokens) * dim);
    for (float& s : steps) s = static_cast<float>(1 + random() % 8) / 4;
    for (float& n : norms) n = static_cast<float>(1 + random() % 16) / 8;
    std::vector<uint8_t> codes(rows.size());
    for (size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<uint8_t>(random() & ((1u << bits[dim + i % dim]) - 1));
    for (const bool keys : {true, false}) {
      for (const bool norm : {true, false}) {
        const SideFormat side = side_of(shape, norm);
        const auto size = static_cast<size_t>(plane_bytes(shape.planes, norm));
        std::vector<uint8_t> block(size, 0x5a), other(size, 0x5a);
        pack_planes(keys, side, dim, codes.data(), norm ? norms.data() : nullptr, kFirst, kTokens,
                    block.data());
        unpack_planes(keys, side, dim, block.data(), {steps.data(), bits.data()}, 1, kFirst, kTokens,
                      rows.data());
        for (int i = 0; i < kTokens * dim; ++i) {
          const int c = dim + i % dim;
          const float middle = static_cast<float>((1 << bits[c]) - 1) / 2;
          ASSERT_EQ(rows[i],
                    (static_cast<float>(codes[i]) - middle) * steps[c] * (norm ? norms[i / dim] : 1));
        }
        // What another token has is as it was: packed back, the block is the old one.
        std::vector<float> before(static_cast<size_t>(64) * dim), after = before;
        const PlaneLevels levels{steps.data(), bits.data()};
        SideFormat bare = side;
        bare.norm = false;
        unpack_planes(keys, bare, dim, other.data(), levels, 0, 0, 64, before.data());
        unpack_planes(keys, bare, dim, block.data(), levels, 0, 0, 64, after.data());
        for (int t = 0; t < 64; ++t) {
          if (t >= kFirst && t < kFirst + kTokens) continue;
          ASSERT_TRUE(
              std::equal(before.begin() + t * dim, before.begin() + (t + 1) * dim, after.begin() + t * dim));
        }
      }
    }
  }
}

TEST(PlanePages, ChannelsAreSortedByFallingBits) {
  const uint8_t bits[8] = {1, 4, 0, 2, 4, 1, 3, 0};
  int order[8];
  plane_order(bits, 8, order);
  const int expected[8] = {1, 4, 6, 3, 0, 5, 2, 7};
  EXPECT_TRUE(std::equal(order, order + 8, expected));
}

TEST(PlanePages, PlanesHoldEveryHeadInTheFewestBytes) {
  std::mt19937 random(5);
  for (int n = 0; n < 300; ++n) {
    const int dims[] = {64, 96, 128, 192, 256};
    const int dim = dims[n % 5], heads = 1 + n % 3;
    std::vector<uint8_t> bits(static_cast<size_t>(heads * dim));
    const unsigned spread = 1 + random() % 5;
    for (uint8_t& b : bits) b = static_cast<uint8_t>(std::min(random() % spread, random() % 5));
    bits[0] = 1;
    SideFormat side{CodeKind::planes};
    plane_channels(bits.data(), heads, dim, side.planes);
    const Status s = check_format({CacheLayout::native, dim, heads, 1, side, side});
    ASSERT_TRUE(s.ok()) << s.what;
    int needed[4] = {};
    for (int h = 0; h < heads; ++h) {
      for (int p = 0; p < 4; ++p) {
        const auto own = bits.begin() + h * dim;
        needed[p] = std::max(needed[p],
                             static_cast<int>(std::count_if(own, own + dim, [&](int b) { return b > p; })));
      }
    }
    for (int p = 0; p < 4; ++p) EXPECT_GE(side.planes[p], needed[p]);
    int pairs[4] = {dim, dim, dim, dim};  // never more than four bits everywhere
    EXPECT_LE(plane_bytes(side.planes, false), plane_bytes(pairs, false));
  }
  const uint8_t narrow[64] = {4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 2, 2, 2, 1, 1};
  int planes[4];
  plane_channels(narrow, 1, 64, planes);  // one chunk of pairs, not one of pairs and one of singles
  EXPECT_EQ(plane_bytes(planes, false), 512);
}

// Words by the search that the codec of the fits uses (tests/calib compares with the codec itself).
TEST(PlanePages, WrittenRowsAreTheNearestLevels) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const Shape& shape : kShapes) {
    for (const bool norm : {false, true}) {
      for (const bool keys : {false, true}) {
        const CacheFormat f = format_of(shape, norm);
        const std::vector<uint8_t> bits = some_bits(shape, 2);
        std::vector<float> steps(bits.size());
        for (size_t i = 0; i < steps.size(); ++i) steps[i] = 2.5f / static_cast<float>(1 << bits[i]);
        constexpr int kTokens = 70;
        std::vector<float> rows(static_cast<size_t>(kTokens) * 2 * shape.dim);
        for (float& x : rows) x = normal(random);
        std::vector<int64_t> slots(kTokens);
        for (int t = 0; t < kTokens; ++t) slots[t] = t * 17 % 128;
        slots[3] = -1;
        std::vector<uint8_t> pages(static_cast<size_t>(2 * page_bytes(f)));
        const PlaneLevels levels{steps.data(), bits.data()};
        WriteTarget target{.keys = keys, .pages = pages.data()};
        target.levels = levels;
        const Status s = write(
            f, {.round_bf16 = false},
            {.rows = rows.data(), .type = FloatType::f32, .tokens = kTokens, .slots = slots.data()}, target);
        ASSERT_TRUE(s.ok()) << s.what;
        for (int t = 0; t < kTokens; ++t) {
          if (t == 3) continue;
          for (int h = 0; h < 2; ++h) {
            const int64_t k = side_bytes(f, f.k), v = side_bytes(f, f.v);
            const uint8_t* block =
                pages.data() + slots[t] / 64 * page_bytes(f) + h * (k + v) + (keys ? 0 : k);
            std::vector<float> got(shape.dim);
            unpack_planes(keys, f.k, shape.dim, block, levels, h, static_cast<int>(slots[t] % 64), 1,
                          got.data());
            const float* x = rows.data() + (t * 2 + h) * shape.dim;
            double squares = 0;
            for (int c = 0; c < shape.dim; ++c) squares += double{x[c]} * x[c];
            const float divisor =
                norm ? half_to_float(float_to_half(static_cast<float>(std::sqrt(squares / shape.dim)))) : 1;
            for (int c = 0; c < shape.dim; ++c) {
              const int at = h * shape.dim + c, count = 1 << bits[at];
              float nearest = 0;
              double least = 1e30;
              for (int i = 0; i < count; ++i) {
                const float level = (static_cast<float>(i) - static_cast<float>(count - 1) / 2) * steps[at];
                const double away = std::abs(double{x[c] / divisor} - level);
                if (away < least) least = away, nearest = level;
              }
              ASSERT_EQ(got[c], nearest * divisor) << "token " << t << " head " << h << " channel " << c;
            }
          }
        }
      }
    }
  }
}

TEST(PlanePages, RefusesWithASentence) {
  const auto refuses = [](const CacheFormat& f, const std::string& why) {
    const Status s = check_format(f);
    ASSERT_FALSE(s.ok()) << why;
    EXPECT_NE(std::string(s.what).find(why), std::string::npos) << s.what;
  };
  const auto with = [](std::initializer_list<int> planes, int dim = 128) {
    SideFormat side{CodeKind::planes};
    std::copy(planes.begin(), planes.end(), side.planes);
    return CacheFormat{CacheLayout::native, dim, 2, 4, side, side};
  };
  refuses(with({128, 84, 32, 16}), "multiple of 8");
  refuses(with({64, 80, 32, 16}), "none more than");
  refuses(with({136, 80, 32, 16}), "none more than");
  refuses(with({128, 80, 32, -8}), "multiple of 8");
  refuses(with({0, 0, 0, 0}), "no channel");
  refuses(with({64, 56, 48, 16}, 64), "2 dim places");
  refuses(with({64, 0, 0, 0}, 80), "head dimensions");
  CacheFormat mixed = with({128, 80, 32, 16});
  mixed.v = {};
  refuses(mixed, "both bit planes");
  CacheFormat rows = with({128, 80, 32, 16});
  rows.layout = CacheLayout::sglang;
  refuses(rows, "native pages only");

  const CacheFormat f = with({128, 80, 32, 16});
  std::vector<uint8_t> bits(256, 1), pages(page_bytes(f));
  std::vector<float> steps(256, 1), row(256);
  const int64_t slot = 0;
  WriteTarget target{.keys = true, .pages = pages.data()};
  const WriteRows in{.rows = row.data(), .type = FloatType::f32, .tokens = 1, .slots = &slot};
  EXPECT_NE(std::string(write(f, {}, in, target).what).find("steps and bits"), std::string::npos);
  target.levels = {steps.data(), bits.data()};
  EXPECT_TRUE(write(f, {}, in, target).ok());
  EXPECT_NE(std::string(write(f, {.clip = 0.9}, in, target).what).find("int2"), std::string::npos);
  bits[130 + 80] = 2;
  EXPECT_NE(std::string(write(f, {}, in, target).what).find("more bits"), std::string::npos);
}

}  // namespace
}  // namespace oscar
