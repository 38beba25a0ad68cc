#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/codebook.h"
#include "tests/kernels/each_level.h"
#include "tests/support/codeword_cases.h"

namespace oscar::test {
namespace {

struct Found {
  std::vector<uint16_t> index;
  std::vector<float> distance;
  bool operator==(const Found&) const = default;
};
template <typename Kernel>
Found run(Kernel kernel, const std::vector<float>& rows, int g, const std::vector<float>& codebook) {
  const int64_t n = static_cast<int64_t>(rows.size()) / g;
  Found found{std::vector<uint16_t>(n, 65535), std::vector<float>(n, -1)};
  kernel(rows.data(), g, n, g, codebook.data(), static_cast<int>(codebook.size()) / g, found.index.data(), 1,
         found.distance.data());
  return found;
}

// To the bit, with and without distances.
void compare(const std::vector<float>& rows, int g, const std::vector<float>& codebook) {
  SCOPED_TRACE(testing::Message() << rows.size() / g << " rows, g " << g << ", " << codebook.size() / g
                                  << " codewords");
  const Found expected = run(nearest_codeword_reference, rows, g, codebook);
  each_level([&](const KernelTable& level) {
    EXPECT_EQ(run(level.nearest_codeword, rows, g, codebook), expected);
    std::vector<uint16_t> index(expected.index.size());
    level.nearest_codeword(rows.data(), g, static_cast<int64_t>(index.size()), g, codebook.data(),
                           static_cast<int>(codebook.size()) / g, index.data(), 1, nullptr);
    EXPECT_EQ(index, expected.index);
  });
}

TEST(Codebook, EveryCodewordFindsItself) {
  for (const int g : {1, 4, 16, 64}) {
    const auto codebook = normal(300 * g, g);
    each_level([&](const KernelTable& level) {
      const Found found = run(level.nearest_codeword, codebook, g, codebook);
      for (int c = 0; c < 300; ++c) {
        EXPECT_EQ(found.index[c], c);
        EXPECT_EQ(found.distance[c], 0);
      }
    });
  }
}

TEST(Codebook, DimsAndCounts) {
  for (int g = 1; g <= 64; g += g < 17 ? 1 : 15) {  // 1 to 17, 32, 47, 62
    for (const int count : {1, 2, 15, 16, 17, 33, 256}) {
      compare(normal(200 * g, g + count), g, normal(count * g, 2 * g + count));
    }
  }
  compare(normal(30 * 4, 5), 4, normal(65536 * 4, 6));
  compare(normal(30000 * 4, 7), 4, normal(256 * 4, 8));
}

TEST(Codebook, NumbersOfRows) {
  const auto codebook = normal(64 * 4, 1);
  for (int n = 0; n <= 130; ++n) compare(normal(n * 4, n + 2), 4, codebook);
}

TEST(Codebook, HardCases) {
  for (const CodewordCase& c : hard_codeword_cases()) {
    SCOPED_TRACE(c.name);
    compare(c.rows, c.g, c.words);
  }
}

TEST(Codebook, StridesAndSplits) {
  const int64_t n = 333, stride = 7, index_stride = 3;
  const auto rows = normal(n * stride, 12), codebook = normal(50 * 4, 13);
  std::vector<uint16_t> expected(n * index_stride, 999);
  nearest_codeword_reference(rows.data(), stride, n, 4, codebook.data(), 50, expected.data(), index_stride,
                             nullptr);
  each_level([&](const KernelTable& level) {
    for (const int64_t part : {int64_t{1}, int64_t{10}, int64_t{64}, n}) {
      std::vector<uint16_t> index(n * index_stride, 999);
      for (int64_t r = 0; r < n; r += part) {
        level.nearest_codeword(rows.data() + r * stride, stride, std::min(part, n - r), 4, codebook.data(),
                               50, index.data() + r * index_stride, index_stride, nullptr);
      }
      EXPECT_EQ(index, expected) << part;
    }
  });
}

TEST(Codebook, ANaNSpoilsItsOwnRowOnly) {
  auto rows = normal(100 * 4, 14);
  const auto codebook = normal(20 * 4, 15);
  const Found expected = run(nearest_codeword_reference, rows, 4, codebook);
  rows[50 * 4 + 1] = std::numeric_limits<float>::quiet_NaN();
  rows[51 * 4 + 2] = std::numeric_limits<float>::infinity();
  each_level([&](const KernelTable& level) {
    const Found found = run(level.nearest_codeword, rows, 4, codebook);
    for (int64_t r = 0; r < 100; ++r) {
      if (r == 50 || r == 51) {
        EXPECT_LT(found.index[r], 20);
      } else {
        EXPECT_EQ(found.index[r], expected.index[r]);
      }
    }
  });
}

TEST(Codebook, BadShapes) {
  const float x[65] = {};
  uint16_t index;
  nearest_codeword(nullptr, 1, 0, 1, x, 1, nullptr, 1, nullptr);
  EXPECT_THROW(nearest_codeword(x, 1, -1, 1, x, 1, &index, 1, nullptr), std::invalid_argument);
  EXPECT_THROW(nearest_codeword(x, 1, 1, 0, x, 1, &index, 1, nullptr), std::invalid_argument);
  EXPECT_THROW(nearest_codeword(x, 65, 1, 65, x, 1, &index, 1, nullptr), std::invalid_argument);
  EXPECT_THROW(nearest_codeword(x, 1, 1, 1, x, 0, &index, 1, nullptr), std::invalid_argument);
  EXPECT_THROW(nearest_codeword(x, 1, 1, 1, x, 65537, &index, 1, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace oscar::test
