#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/codebook.h"
#include "tests/kernels/each_level.h"

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

// Bit-equal codewords, integer grids and codewords that differ in the last bits: float32 scores cannot tell.
TEST(Codebook, TiesGoToTheLowestIndex) {
  compare(normal(100 * 4, 1), 4, std::vector<float>(256 * 4, 0.5f));
  const auto once = normal(100 * 4, 2);
  std::vector<float> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  compare(normal(1000 * 4, 3), 4, twice);
  std::vector<float> rows = normal(3000 * 3, 4, 3), grid = normal(200 * 3, 5, 3);
  for (auto* x : {&rows, &grid}) {
    for (float& value : *x) value = std::round(value);
  }
  compare(rows, 3, grid);
}

TEST(Codebook, CodewordsThatFloatScoresCannotTellApart) {
  for (const float away : {1.0f, 100.0f, 1e6f}) {
    std::vector<float> rows = normal(2000 * 4, 6, 1e-4f), codebook = normal(256 * 4, 7, 1e-4f);
    for (auto* x : {&rows, &codebook}) {
      for (float& value : *x) value += away;
    }
    compare(rows, 4, codebook);
  }
}

// Codewords of nearly the same length around rows of nearly none: all depends on the last bits of |c|^2 / 2.
TEST(Codebook, RowsNearTheCentreOfASphere) {
  for (const float sigma : {1e-3f, 1e-6f, 1e-9f}) {
    std::vector<float> codebook = normal(256 * 6, 16);
    for (int c = 0; c < 256; ++c) {
      double norm = 0;
      for (int i = 0; i < 6; ++i) norm += double(codebook[c * 6 + i]) * codebook[c * 6 + i];
      for (int i = 0; i < 6; ++i) codebook[c * 6 + i] /= static_cast<float>(std::sqrt(norm));
    }
    compare(normal(2000 * 6, 17, sigma), 6, codebook);
  }
}

// One codeword, or one channel, far larger than all others; everything large or tiny.
TEST(Codebook, Outliers) {
  std::vector<float> rows = normal(2000 * 8, 8), codebook = normal(256 * 8, 9);
  codebook[37 * 8 + 3] = 1e6f;
  compare(rows, 8, codebook);
  for (int64_t r = 0; r < 2000; ++r) rows[r * 8 + 5] *= 1000;
  for (int64_t c = 0; c < 256; ++c) codebook[c * 8 + 5] *= 1000;
  compare(rows, 8, codebook);
  for (const float sigma : {1e17f, 1e-10f, 1e-19f, 1e-22f, 1e-40f, 0.0f}) {
    compare(normal(500 * 4, 10, sigma), 4, normal(100 * 4, 11, sigma));
    compare(normal(500 * 4, 10, sigma), 4, normal(100 * 4, 11));
    compare(normal(500 * 4, 10), 4, normal(100 * 4, 11, sigma));
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
