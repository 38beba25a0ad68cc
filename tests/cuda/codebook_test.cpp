// The nearest codewords on the GPU, to the byte those of the scalar reference.
#include "kernels/codebook.h"

#include "kernels/codebook_device.h"
#include "tests/cuda/device_memory.h"
#include "tests/support/codeword_cases.h"
#include "tests/support/support.h"

namespace oscar::cuda {
namespace {

using test::normal;
using Values = std::vector<float>;

// Searches of groups 2, 0 and 2 of three, which hold `rows`, others and `rows` scaled.
void compare(const Values& rows, int g, const Values& words) {
  const int64_t n = static_cast<int64_t>(rows.size()) / g;
  const int count = static_cast<int>(words.size()) / g;
  SCOPED_TRACE(testing::Message() << n << " rows, g " << g << ", " << count << " words");
  Values all = rows, books = words;
  const Values others = normal(n * g, 98), again = normal(count * g, 99);
  all.insert(all.end(), others.begin(), others.end());
  for (const float x : rows) all.push_back(0.75f * x);
  const std::vector<int32_t> group{2, 0, 2};
  books.insert(books.end(), words.begin(), words.end());
  books.insert(books.end(), again.begin(), again.end());
  std::vector<uint16_t> index(3 * n);
  Values distance(3 * n);
  for (int s = 0; s < 3; ++s) {
    nearest_codeword_reference(all.data() + group[s] * n * g, g, n, g, books.data() + s * count * g, count,
                               index.data() + s * n, 1, distance.data() + s * n);
  }
  const DeviceArray<float> device_rows(all), device_words(books);
  const DeviceArray<int32_t> device_group(group);
  const DeviceArray<uint16_t> found(index.size());
  const DeviceArray<float> distances(distance.size());
  require(nearest_codewords({.n = n,
                             .g = g,
                             .count = count,
                             .searches = 3,
                             .rows = device_rows.get(),
                             .group = device_group.get(),
                             .words = device_words.get(),
                             .index = found.get(),
                             .distance = distances.get()},
                            nullptr));
  EXPECT_TRUE(found.host() == index);
  EXPECT_TRUE(distances.host() == distance);
}

TEST(CudaCodebook, SizesAndCounts) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int g : {1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 47, 64}) {
    for (const int count : {1, 2, 33, 256}) compare(normal(1100 * g, g), g, normal(count * g, count));
  }
  for (const int64_t n : {1, 2, 7, 1023, 1025}) compare(normal(n * 4, n), 4, normal(256 * 4, 3));
  compare(normal(300 * 4, 5), 4, normal(65536 * 4, 6));  // words beyond a tile
  compare(normal(300 * 64, 5), 64, normal(1000 * 64, 6));
  compare(normal(50000 * 4, 7), 4, normal(1024 * 4, 8));
}

TEST(CudaCodebook, HardCases) {
  OSCAR_NEEDS_DEVICE(info);
  for (const test::CodewordCase& c : test::hard_codeword_cases()) {
    SCOPED_TRACE(c.name);
    compare(c.rows, c.g, c.words);
  }
}

TEST(CudaCodebook, BadShapesAreRefused) {
  OSCAR_NEEDS_DEVICE(info);
  EXPECT_TRUE(nearest_codewords({.n = 0, .g = 4, .count = 1, .searches = 1}, nullptr).ok());
  EXPECT_TRUE(nearest_codewords({.n = 5, .g = 4, .count = 1, .searches = 0}, nullptr).ok());
  EXPECT_FALSE(nearest_codewords({.n = -1, .g = 4, .count = 1, .searches = 1}, nullptr).ok());
  EXPECT_FALSE(nearest_codewords({.n = 1, .g = 65, .count = 1, .searches = 1}, nullptr).ok());
  EXPECT_FALSE(nearest_codewords({.n = 1, .g = 4, .count = 65537, .searches = 1}, nullptr).ok());
  EXPECT_FALSE(nearest_codewords({.n = 1, .g = 4, .count = 0, .searches = 1}, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
