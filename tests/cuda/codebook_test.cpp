// The nearest codewords on the GPU, to the byte those of the scalar reference.
#include "kernels/codebook.h"

#include <cmath>
#include <random>

#include "kernels/codebook_device.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

using Values = std::vector<float>;

Values normal(int64_t count, uint64_t seed, float sigma = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> draw(0, sigma);
  Values values(count);
  for (float& value : values) value = draw(engine);
  return values;
}

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

// Equal words, words in a grid, words that differ in their last bits, words around rows of nearly no length.
TEST(CudaCodebook, WhatFloatScoresCannotTellApart) {
  OSCAR_NEEDS_DEVICE(info);
  compare(normal(1000 * 4, 1), 4, Values(256 * 4, 0.5f));
  compare(normal(100 * 16, 1), 16, Values(700 * 16, 0.5f));
  Values rows = normal(3000 * 3, 4, 3), grid = normal(200 * 3, 5, 3);
  for (Values* x : {&rows, &grid}) {
    for (float& value : *x) value = std::round(value);
  }
  compare(rows, 3, grid);
  for (const float away : {1.0f, 100.0f, 1e6f}) {
    Values far = normal(2000 * 4, 6, 1e-4f), words = normal(256 * 4, 7, 1e-4f);
    for (Values* x : {&far, &words}) {
      for (float& value : *x) value += away;
    }
    compare(far, 4, words);
  }
  Values sphere = normal(256 * 6, 16);
  for (int c = 0; c < 256; ++c) {
    double norm = 0;
    for (int i = 0; i < 6; ++i) norm += std::pow(double(sphere[c * 6 + i]), 2);
    for (int i = 0; i < 6; ++i) sphere[c * 6 + i] /= static_cast<float>(std::sqrt(norm));
  }
  for (const float sigma : {1e-3f, 1e-6f, 1e-9f}) compare(normal(2000 * 6, 17, sigma), 6, sphere);
}

TEST(CudaCodebook, LargeAndTinyOnes) {
  OSCAR_NEEDS_DEVICE(info);
  Values rows = normal(2000 * 8, 8), words = normal(256 * 8, 9);
  words[37 * 8 + 3] = 1e6f;
  compare(rows, 8, words);
  for (int64_t r = 0; r < 2000; ++r) rows[r * 8 + 5] *= 1000;
  compare(rows, 8, words);
  for (const float sigma : {1e17f, 1e-10f, 1e-19f, 1e-22f, 1e-40f, 0.0f}) {
    compare(normal(500 * 4, 10, sigma), 4, normal(100 * 4, 11, sigma));
    compare(normal(500 * 4, 10, sigma), 4, normal(100 * 4, 11));
    compare(normal(500 * 4, 10), 4, normal(100 * 4, 11, sigma));
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
