// Weighted k-means, and how its codewords are kept.
#include "libcalib/codebook_training.h"

#include <random>
#include <set>

#include "libcalib/codeword_storage.h"
#include "tests/support/support.h"

namespace oscar::test {
namespace {

using Words = std::vector<float>;

double loss_of(const Words& rows, const Words& weights, int g, const Words& words) {
  const auto size = static_cast<size_t>(g);
  double sum = 0;
  for (size_t r = 0; r < weights.size(); ++r) {
    double least = INFINITY;
    for (size_t c = 0; c < words.size() / size; ++c) {
      double distance = 0;
      for (size_t j = 0; j < size; ++j)
        distance += std::pow(double(rows[r * size + j]) - words[c * size + j], 2);
      least = std::min(least, distance);
    }
    sum += weights[r] * least;
  }
  return sum;
}
TrainedCodebook train(const Words& rows, const Words& weights, int g, int count,
                      const TrainingOptions& options = {}, uint64_t seed = 0) {
  const TrainingGroup group{rows.data(), seed};
  return train_codebooks({&group, 1}, weights.data(), static_cast<int64_t>(weights.size()), g, count, options,
                         cpu_search())[0];
}
Words positive(size_t n, uint64_t seed) {
  auto values = normal(n, seed);
  for (float& x : values) x = std::exp(x);
  return values;
}

TEST(CodebookTraining, BeatsRowsTakenAsWords) {
  const auto rows = normal(4000 * 4, 1), weights = positive(4000, 2);
  const auto book = train(rows, weights, 4, 64);
  EXPECT_EQ(book.words.size(), 64u * 4);
  EXPECT_NEAR(book.loss, loss_of(rows, weights, 4, book.words), 1e-4 * book.loss);
  const Words random(rows.begin(), rows.begin() + 64 * 4);
  EXPECT_LT(book.loss, 0.75 * loss_of(rows, weights, 4, random));
  // A scalar normal in four levels: the Lloyd-Max quantiser's 0.1175.
  const auto scalars = normal(20000, 3);
  const Words ones(20000, 1.0f);
  double energy = 0;
  for (const float x : scalars) energy += double(x) * x;
  EXPECT_NEAR(train(scalars, ones, 1, 4).loss / energy, 0.1175, 0.003);
}

TEST(CodebookTraining, FindsClustersThatAreFarApart) {
  constexpr size_t kClusters = 16, kRows = 4096, kSize = 3;
  Words rows = normal(kRows * kSize, 1), centres;
  const auto weights = positive(kRows, 2);
  for (size_t c = 0; c < kClusters; ++c) {  // corners and more of a grid
    for (size_t j = 0; j < kSize; ++j)
      centres.push_back(100.0f * static_cast<float>(j == 0 ? c % 4 : j == 1 ? c / 4 % 2 : c / 8));
  }
  std::mt19937_64 engine(3);
  for (size_t r = 0; r < kRows; ++r) {
    const size_t cluster = engine() % kClusters;
    for (size_t j = 0; j < kSize; ++j) rows[r * kSize + j] += centres[cluster * kSize + j];
  }
  EXPECT_LE(train(rows, weights, kSize, kClusters).loss, 1.01 * loss_of(rows, weights, kSize, centres));
}

TEST(CodebookTraining, HeavyRowsAreServedFirst) {
  // Four places, two words: they go to the heavy ones.
  Words rows, weights;
  for (int i = 0; i < 400; ++i) {
    rows.push_back(static_cast<float>(i % 4) * 10);
    weights.push_back(i % 4 == 1 || i % 4 == 2 ? 1000.0f : 1.0f);
  }
  auto words = train(rows, weights, 1, 2).words;
  std::ranges::sort(words);
  EXPECT_NEAR(words[0], 10, 0.1);
  EXPECT_NEAR(words[1], 20, 0.1);
}

TEST(CodebookTraining, RowsOfWeightZeroAndTheScaleOfWeightsDoNotMatter) {
  auto rows = normal(3000 * 2, 4), weights = positive(3000, 5);
  for (size_t r = 0; r < 3000; r += 3) weights[r] = 0;
  const auto book = train(rows, weights, 2, 16);
  for (size_t r = 0; r < 3000; r += 3) rows[2 * r] = 1e4f;
  EXPECT_EQ(train(rows, weights, 2, 16).words, book.words);
  for (float& weight : weights) weight *= 1024;
  const auto scaled = train(rows, weights, 2, 16);
  EXPECT_EQ(scaled.words, book.words);
  EXPECT_EQ(scaled.loss, 1024 * book.loss);
}

TEST(CodebookTraining, FewDistinctRowsAllBecomeWords) {
  const auto places = normal(5 * 3, 6);
  Words rows, weights;
  for (size_t r = 0; r < 500; ++r) {
    rows.insert(rows.end(), places.begin() + static_cast<std::ptrdiff_t>(r % 5 * 3),
                places.begin() + static_cast<std::ptrdiff_t>(r % 5 * 3 + 3));
    weights.push_back(1 + static_cast<float>(r % 7));
  }
  for (const int count : {8, 16, 256}) {
    const auto book = train(rows, weights, 3, count);
    EXPECT_EQ(book.words.size(), static_cast<size_t>(count) * 3);
    EXPECT_LT(book.loss, 1e-9) << count;
    for (const float word : book.words) EXPECT_TRUE(std::isfinite(word));
  }
}

TEST(CodebookTraining, FewerRowsThanWords) {
  for (const size_t n : {size_t{1}, size_t{2}, size_t{7}, size_t{100}}) {
    for (const int count : {2, 16, 256}) {
      const auto rows = normal(n * 4, n), weights = positive(n, n + 1);
      for (const int restarts : {1, 3}) {
        const auto book = train(rows, weights, 4, count, {.restarts = restarts});
        ASSERT_EQ(book.words.size(), static_cast<size_t>(count) * 4);
        for (const float word : book.words) EXPECT_TRUE(std::isfinite(word));
        double energy = 0;
        for (size_t i = 0; i < rows.size(); ++i) energy += weights[i / 4] * rows[i] * rows[i];
        EXPECT_LT(book.loss, (n <= static_cast<size_t>(count) ? 1e-9 : 1) * energy) << n << ' ' << count;
      }
    }
  }
}

TEST(CodebookTraining, MoreEffortIsNeverWorse) {
  const auto rows = normal(2000 * 4, 8), weights = positive(2000, 9);
  double before = INFINITY;
  for (const int restarts : {1, 2, 4, 8}) {
    const double loss = train(rows, weights, 4, 32, {.restarts = restarts}, 3).loss;
    EXPECT_LE(loss, before) << restarts;
    before = loss;
  }
  before = INFINITY;
  for (const int refine : {0, 1, 5, 20}) {
    const double loss = train(rows, weights, 4, 32, {.iterations = 2, .refine = refine}).loss;
    EXPECT_LE(loss, before) << refine;
    before = loss;
  }
}

TEST(CodebookTraining, TheSameInputsGiveTheSameBytes) {
  const auto rows = normal(2000 * 4, 8), weights = positive(2000, 9);
  const auto words = [&](uint64_t seed, int restarts) {
    return train(rows, weights, 4, 32, {.iterations = 2, .restarts = restarts}, seed).words;
  };
  EXPECT_EQ(words(1, 4), words(1, 4));
  std::set<Words> different;
  for (uint64_t seed = 0; seed < 5; ++seed) different.insert(words(seed, 8));
  EXPECT_GT(different.size(), 1u) << "the seed does nothing";
  EXPECT_EQ(words(1, 1), words(2, 1)) << "the first training is seeded by splitting";
}

std::vector<Words> word_groups() {
  std::vector<Words> groups{Words(16, 0.0f), {1.0f}, {-3.25e-3f, 7.7f}};
  for (const float scale : {1e-20f, 1e-6f, 1.0f, 333.0f, 1e17f}) {
    for (uint64_t seed = 0; seed < 40; ++seed) groups.push_back(normal(64, seed, scale));
  }
  return groups;
}

TEST(CodewordStorage, Int8WordsAreExactMultiplesOfOneScale) {
  for (Words words : word_groups()) {
    const Words before = words;
    round_words(words, Stored::Int8);
    const Int8Words kept = int8_words(words);
    ASSERT_EQ(kept.values.size(), words.size()) << "of about " << before[0];
    float most = 0;
    for (const float word : before) most = std::max(most, std::abs(word));
    for (size_t i = 0; i < words.size(); ++i) {
      EXPECT_EQ(double(kept.values[i]) * double(kept.scale), double(words[i]));  // without rounding
      EXPECT_GE(kept.values[i], -127);
      EXPECT_LE(std::abs(words[i] - before[i]), (most == std::abs(before[i]) ? 1.01 : 0.505) * most / 127);
    }
    Words again = words;
    round_words(again, Stored::Int8);
    EXPECT_EQ(again, words);
  }
}

TEST(CodewordStorage, WordsBelowEveryScaleBecomeZero) {
  Words words{1e-44f, -1e-40f, 0.0f};
  round_words(words, Stored::Int8);
  for (const float word : words) EXPECT_EQ(word, 0.0f);
  EXPECT_EQ(int8_words(words).values, (std::vector<int8_t>{0, 0, 0}));
}

TEST(CodewordStorage, WhatInt8DidNotMakeIsNotTakenForIt) {
  EXPECT_TRUE(int8_words(normal(64, 1)).values.empty());
  Words words = normal(64, 1);
  round_words(words, Stored::Int8);
  words[5] = std::nextafter(words[5], 100.0f);
  EXPECT_TRUE(int8_words(words).values.empty());
}

TEST(CodewordStorage, FloatFormatsAreFixedAfterOneRounding) {
  struct Format {
    Stored stored;
    double relative;  // of a word that is no smaller than a hundredth of the largest
  };
  for (const auto& [stored, relative] :
       {Format{Stored::Fp16, 0.0005}, Format{Stored::E4M3, 0.064}, Format{Stored::E5M2, 0.126}}) {
    for (const float scale : {1e-3f, 1.0f, 300.0f}) {
      for (uint64_t seed = 0; seed < 40; ++seed) {
        Words words = normal(64, seed, scale);
        const Words before = words;
        round_words(words, stored);
        Words once = words;
        round_words(words, stored);
        EXPECT_EQ(words, once) << static_cast<int>(stored) << ' ' << scale << ' ' << seed;
        float most = 0;
        for (const float word : before) most = std::max(most, std::abs(word));
        for (size_t i = 0; i < words.size(); ++i) {
          if (std::abs(before[i]) < 0.01f * most) continue;
          EXPECT_LE(std::abs(words[i] - before[i]), relative * std::abs(before[i]) + 0x1p-25);  // fp16's step
        }
      }
    }
    Words zero(8, 0.0f);
    round_words(zero, stored);
    EXPECT_EQ(zero, Words(8, 0.0f));
  }
}

}  // namespace
}  // namespace oscar::test
