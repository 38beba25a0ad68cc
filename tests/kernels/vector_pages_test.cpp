// Pages of vector codes: every code has a byte of its own, comes back from it, and lies where a warp meets no
// bank twice.
#include "kernels/vector_pages.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace oscar {
namespace {

struct Shape {
  int dim, size;
};
constexpr Shape kShapes[] = {{64, 4}, {64, 8}, {128, 4}, {128, 8}};

TEST(VectorPages, EveryCodeHasAByteOfItsOwn) {
  for (const auto [dim, size] : kShapes) {
    for (const bool keys : {true, false}) {
      std::set<int> bytes;
      for (int token = 0; token < 64; ++token) {
        for (int group = 0; group < dim / size; ++group) {
          const int at =
              keys ? vector_key_byte(dim, size, token, group) : vector_value_byte(size, token, group);
          ASSERT_GE(at, 0);
          ASSERT_LT(at, vector_bytes(dim, size, false)) << "dim " << dim << " size " << size;
          ASSERT_TRUE(bytes.insert(at).second) << "dim " << dim << " size " << size << " token " << token;
        }
        EXPECT_GE(vector_scale_byte(dim, size, token), vector_bytes(dim, size, false));
        EXPECT_LT(vector_scale_byte(dim, size, token), vector_bytes(dim, size, true));
      }
    }
  }
}

// What the layout is for. Keys: in one step the eight rows g of a warp take codes that are groups of both
// kinds (size 4: rows of each parity share one half of the groups; size 8: four neighbouring rows take four
// different ones).
TEST(VectorPages, NeighbouringRowsTakeDifferentGroupsInOneStep) {
  for (const auto [dim, size] : kShapes) {
    const int n = dim / size / 4;
    for (int step = 0; step < n; ++step) {
      std::set<int> rows[2];  // which j the rows of even and of odd g take
      for (int g = 0; g < 8; ++g) {
        for (int j = 0; j < n; ++j) {
          if (vector_key_byte(dim, size, 8 * g, 4 * j) % 16 % n == step) rows[g % 2].insert(j);
        }
      }
      for (const int j : rows[0]) EXPECT_EQ(rows[1].count(j), 0u) << "dim " << dim << " size " << size;
      const size_t all = size == 4 ? 2 : n < 4 ? n : 4;
      EXPECT_EQ(rows[0].size() + rows[1].size(), all) << "dim " << dim << " size " << size;
    }
  }
}

TEST(VectorPages, RowsComeBack) {
  std::mt19937 random(3);
  constexpr int kHeads = 3, kFirst = 5, kTokens = 41;
  for (const auto [dim, size] : kShapes) {
    const int groups = dim / size;
    std::vector<int8_t> words(static_cast<size_t>(kHeads * kVectorWords * dim));
    for (auto& w : words) w = static_cast<int8_t>(random());
    std::vector<float> group_scales(static_cast<size_t>(kHeads * groups));
    for (auto& s : group_scales) s = static_cast<float>(1 + random() % 8) / 4;
    std::vector<uint8_t> codes(static_cast<size_t>(kTokens * groups));
    for (auto& c : codes) c = static_cast<uint8_t>(random());
    std::vector<float> scales(kTokens), rows(static_cast<size_t>(kTokens * dim));
    for (auto& s : scales) s = static_cast<float>(1 + random() % 16) / 8;
    for (const bool keys : {true, false}) {
      for (const bool norm : {true, false}) {
        std::vector<uint8_t> block(vector_bytes(dim, size, norm));
        pack_vector(keys, dim, size, codes.data(), norm ? scales.data() : nullptr, kFirst, kTokens,
                    block.data());
        unpack_vector(keys, dim, size, norm, block.data(), {words.data(), group_scales.data()}, 2, kFirst,
                      kTokens, rows.data());
        for (int r = 0; r < kTokens; ++r) {
          for (int i = 0; i < dim; ++i) {
            const int code = codes[r * groups + i / size];
            const float want = static_cast<float>(words[(2 * kVectorWords + code) * dim + i]) *
                               group_scales[2 * groups + i / size] * (norm ? scales[r] : 1);
            ASSERT_EQ(rows[r * dim + i], want) << "dim " << dim << " size " << size << " row " << r;
          }
        }
      }
    }
  }
}

TEST(VectorPages, OtherTokensAreLeftAlone) {
  for (const auto [dim, size] : kShapes) {
    std::vector<uint8_t> codes(dim / size, 0x11), block(vector_bytes(dim, size, true), 0x5a), before = block;
    const float scale = 3;
    pack_vector(true, dim, size, codes.data(), &scale, 63, 1, block.data());
    int changed = 0;
    for (size_t i = 0; i < block.size(); ++i) changed += block[i] != before[i];
    EXPECT_EQ(changed, dim / size + 2);
  }
}

}  // namespace
}  // namespace oscar
