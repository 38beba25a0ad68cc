#include "tests/support/codeword_cases.h"

#include <fmt/format.h>

#include <cmath>

#include "tests/support/support.h"

namespace oscar::test {

std::vector<CodewordCase> hard_codeword_cases() {
  using Values = std::vector<float>;
  std::vector<CodewordCase> cases;
  cases.push_back({"equal words", normal(100 * 4, 1), Values(256 * 4, 0.5f), 4});
  cases.push_back({"equal words, more than a tile", normal(100 * 16, 1), Values(700 * 16, 0.5f), 16});
  const Values once = normal(100 * 4, 2);
  Values twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  cases.push_back({"every word twice", normal(1000 * 4, 3), twice, 4});
  Values rows = normal(3000 * 3, 4, 3), grid = normal(200 * 3, 5, 3);
  for (Values* x : {&rows, &grid}) {
    for (float& value : *x) value = std::round(value);
  }
  cases.push_back({"a grid", rows, grid, 3});

  for (const float away : {1.0f, 100.0f, 1e6f}) {
    Values far = normal(2000 * 4, 6, 1e-4f), words = normal(256 * 4, 7, 1e-4f);
    for (Values* x : {&far, &words}) {
      for (float& value : *x) value += away;
    }
    cases.push_back({fmt::format("{} from the origin", away), far, words, 4});
  }
  // All depends on the last bits of |c|^2 / 2.
  Values sphere = normal(256 * 6, 16);
  for (size_t c = 0; c < 256; ++c) {
    double norm = 0;
    for (size_t i = 0; i < 6; ++i) norm += double(sphere[c * 6 + i]) * sphere[c * 6 + i];
    for (size_t i = 0; i < 6; ++i) sphere[c * 6 + i] /= static_cast<float>(std::sqrt(norm));
  }
  for (const float sigma : {1e-3f, 1e-6f, 1e-9f})
    cases.push_back(
        {fmt::format("{} from the centre of a sphere", sigma), normal(2000 * 6, 17, sigma), sphere, 6});

  Values large = normal(2000 * 8, 8), words = normal(256 * 8, 9);
  words[37 * 8 + 3] = 1e6f;
  cases.push_back({"one large word", large, words, 8});
  for (size_t r = 0; r < 2000; ++r) large[r * 8 + 5] *= 1000;
  for (size_t c = 0; c < 256; ++c) words[c * 8 + 5] *= 1000;
  cases.push_back({"one large channel", large, words, 8});
  for (const float sigma : {1e17f, 1e-10f, 1e-19f, 1e-22f, 1e-40f, 0.0f}) {
    const Values scaled_rows = normal(500 * 4, 10, sigma), scaled_words = normal(100 * 4, 11, sigma);
    cases.push_back({fmt::format("all of {}", sigma), scaled_rows, scaled_words, 4});
    cases.push_back({fmt::format("rows of {}", sigma), scaled_rows, normal(100 * 4, 11), 4});
    cases.push_back({fmt::format("words of {}", sigma), normal(500 * 4, 10), scaled_words, 4});
  }
  return cases;
}

}  // namespace oscar::test
