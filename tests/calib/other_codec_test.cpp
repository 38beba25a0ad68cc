// The codecs that are not the engine's INT2: KIVI, Kitty, Q2_0, QJL, vector codes.
#include <algorithm>
#include <cmath>

#include "tests/calib/codec_support.h"

namespace oscar::test {
namespace {

TEST(Int4Codec, SixteenLevelsAreHeldExactly) {
  std::vector<float> rows;
  for (int i = 0; i < 64; ++i) rows.push_back(static_cast<float>(i % 16) * 0.25f - 1);
  EXPECT_EQ(decoded(find_codec("int4"), rows, 64, {}), rows);
}

TEST(KiviCodecs, KeysHaveARangePerChannelAndValuesPerToken) {
  // Four levels in every channel over 32 tokens, channels of very different offset and size.
  std::vector<float> keys;
  for (int t = 0; t < 64; ++t) {
    for (int c = 0; c < 32; ++c) keys.push_back(static_cast<float>(c * 8 + (t + t / 4) % 4 * (c + 1)));
  }
  EXPECT_EQ(decoded(find_codec("kivi-k"), keys, 32, {}), keys);
  EXPECT_GT(relative_error(decoded(find_codec("kivi-v"), keys, 32, {}), keys), 0.05);
  std::vector<float> values;
  for (int c = 0; c < 64; ++c) {
    for (int t = 0; t < 32; ++t) values.push_back(static_cast<float>(c * 8 + (t + t / 4) % 4 * (c + 1)));
  }
  EXPECT_EQ(decoded(find_codec("kivi-v"), values, 32, {}), values);  // tokens now
}

TEST(KiviCodecs, RoundToNearestWithTiesToEven) {
  // Range 0 to 6, so a step of 2: 1, 3 and 5 are half way.
  std::vector<float> row(32, 0.0f);
  row[0] = 6, row[1] = 1, row[2] = 3, row[3] = 5, row[4] = 2.9f, row[5] = 3.1f;
  const auto out = decoded(find_codec("kivi-v"), row, 32, {});
  EXPECT_EQ(std::vector(out.begin(), out.begin() + 6), (std::vector{6.0f, 0.0f, 4.0f, 4.0f, 2.0f, 4.0f}));
}

TEST(KittyCodec, TheLoudestQuarterOfAPageHas16Levels) {
  // 16 levels everywhere; in the first page channels 1 and 5 are the loudest of 8, in the second 0 and 7.
  std::vector<float> keys;
  for (int t = 0; t < 256; ++t) {
    for (int c = 0; c < 8; ++c) {
      const bool loud = t < 128 ? c == 1 || c == 5 : c == 0 || c == 7;
      keys.push_back(static_cast<float>(t * 7 % 16) * (loud ? 2 : 1));
    }
  }
  const auto out = decoded(find_codec("kitty-k"), keys, 8, {});
  for (int page = 0; page < 2; ++page) {
    for (int c = 0; c < 8; ++c) {
      double worst = 0;
      for (int t = page * 128; t < page * 128 + 128; ++t) {
        const auto i = static_cast<size_t>(t * 8 + c);
        worst = std::max<double>(worst, std::abs(out[i] - keys[i]));
      }
      const bool loud = page == 0 ? c == 1 || c == 5 : c == 0 || c == 7;
      EXPECT_EQ(worst, loud ? 0 : 2) << page << " " << c;  // four levels 0 5 10 15
    }
  }
}

TEST(KittyCodec, EquallyLoudChannelsAreBoostedFromTheFirst) {
  std::vector<float> keys;
  for (int t = 0; t < 128; ++t) {
    for (int c = 0; c < 64; ++c) keys.push_back(static_cast<float>((t + c) % 16));
  }
  const auto out = decoded(find_codec("kitty-k"), keys, 64, {});
  for (size_t c = 0; c < 64; ++c) {
    bool exact = true;
    for (size_t i = c; i < out.size(); i += 64) exact = exact && out[i] == keys[i];
    EXPECT_EQ(exact, c < 16) << c;
  }
}

TEST(LlamacppQ2, BlocksFollowTheShippedRule) {
  // Two vectors; mean 10 and 0, blocks of different size. All magnitudes are sigma: outer codes.
  std::vector<float> row(256);
  for (int i = 0; i < 256; ++i)
    row[static_cast<size_t>(i)] =
        (i < 128 ? 10.0f : 0.0f) + (i % 2 ? 1.0f : -1.0f) * static_cast<float>(1 << i / 32);
  const auto out = decoded(find_codec("llamacpp-q2_0"), row, 256, {});
  for (int i = 0; i < 256; ++i) {
    const float expected =
        (i < 128 ? 10.0f : 0.0f) + (i % 2 ? 1.0f : -1.0f) * static_cast<float>(1 << i / 32) * 0.9816f;
    EXPECT_FLOAT_EQ(out[static_cast<size_t>(i)], expected) << i;
  }
}

TEST(LlamacppQ2, ThresholdsAreQuartiles) {
  const float rest = std::sqrt((32 - 2 * (0.67f * 0.67f + 0.68f * 0.68f)) / 28);  // so that sigma is 1
  std::vector<float> row(128, 0.0f);
  for (int i = 0; i < 32; ++i) row[static_cast<size_t>(i)] = i % 2 ? rest : -rest;
  row[0] = -0.67f, row[1] = 0.67f, row[2] = -0.68f, row[3] = 0.68f;
  const auto out = decoded(find_codec("llamacpp-q2_0"), row, 128, {});
  const std::vector expected{-0.4528f, 0.4528f, -0.9816f, 0.9816f};
  EXPECT_LT(relative_error({out.data(), 4}, expected), 1e-3);
}

TEST(LlamacppQ2, ClipsWhatTheMeanLeaves) {
  // Magnitudes about the mean are 1 but for five of 20 (one of four): index 122 is the loudest but five.
  std::vector<float> row(128);
  for (int i = 0; i < 128; ++i)
    row[static_cast<size_t>(i)] = 3.0f + (i % 2 ? 1.0f : -1.0f) * (i < 6 ? 20.0f : 1.0f);
  const auto& codec = find_codec("llamacpp-q2_0");
  const auto clipped = decoded(codec, row, 128, {.groups = 1, .clip = 0.95});  // index 121: a quiet one
  EXPECT_NEAR(clipped[1], 3 + 0.9816, 1e-3);
  const auto loud = decoded(codec, row, 128, {.groups = 1, .clip = 0.96});  // index 122: a loud one
  EXPECT_GT(loud[1], 10);
  EXPECT_EQ(loud, decoded(codec, row, 128, {.groups = 1, .clip = 1.0}));
  EXPECT_EQ(loud, decoded(codec, row, 128, {}));
}

TEST(QjlCodec, MeanOverSeedsOfTheScoreEqualsTheScoreWithinItsStandardError) {
  constexpr int kDim = 64, kSeeds = 4000;
  auto options = vector_options(codebook(kDim, 4, 4));
  const auto key = normal(kDim, 31);
  auto query = normal(kDim, 32);
  for (size_t i = 0; i < kDim; ++i) query[i] += key[i];  // so that a wrong factor shows
  const auto score = [&](const std::vector<float>& k) {
    double sum = 0;
    for (size_t i = 0; i < kDim; ++i) sum += double(query[i]) * k[i];
    return sum;
  };
  double sum = 0, squares = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    options.seed = static_cast<uint64_t>(seed);
    const double error = score(decoded(find_codec("qjl"), key, kDim, options)) - score(key);
    sum += error;
    squares += error * error;
  }
  const double mean = sum / kSeeds, standard_error = std::sqrt((squares / kSeeds - mean * mean) / kSeeds);
  EXPECT_LT(std::abs(mean), 3.5 * standard_error);
  EXPECT_LT(standard_error, 0.01 * score(key));
  EXPECT_GT(std::abs(score(decoded(find_codec("vector"), key, kDim, options)) - score(key)),
            20 * standard_error);
}

TEST(QjlCodec, SeedsMatterAndRowsThatTheCodebookHoldsGetNothingAdded) {
  auto options = vector_options(codebook(64, 4, 4));
  const auto row = normal(64, 5);
  const auto& codec = find_codec("qjl");
  const auto one = decoded(codec, row, 64, options);
  EXPECT_EQ(decoded(codec, row, 64, options), one);
  options.seed = 1;
  EXPECT_NE(decoded(codec, row, 64, options), one);
  const auto held = decoded(find_codec("vector"), row, 64, options);
  EXPECT_EQ(decoded(codec, held, 64, options), held);
}

TEST(VectorCodec, EveryCodewordIsHeldExactly) {
  const auto book = codebook(64, 4, 8);
  std::vector<float> rows;
  for (size_t word = 0; word < 256; ++word) {
    for (const auto& group : book.groups) {
      const auto first = group.words.begin() + static_cast<int64_t>((word + rows.size()) % 256 * 4);
      rows.insert(rows.end(), first, first + 4);
    }
  }
  EXPECT_EQ(decoded(find_codec("vector"), rows, 64, vector_options(book)), rows);
}

TEST(VectorCodec, ANormMakesTheScaleOfARowIrrelevant) {
  const auto options = vector_options(codebook(64, 4, 8, true));
  auto rows = normal(20 * 64, 9);
  const auto& codec = find_codec("vector");
  auto expected = decoded(codec, rows, 64, options);
  for (auto& x : rows) x *= 1024;
  for (auto& x : expected) x *= 1024;
  EXPECT_EQ(decoded(codec, rows, 64, options), expected);
}

TEST(VectorCodec, NormsBeyondFp16BecomeTheNearestThatItHolds) {
  const auto options = vector_options(codebook(64, 4, 8, true));
  const auto& codec = find_codec("vector");
  const auto quiet = normal(20 * 64, 9, 2.5e-8f), loud = normal(20 * 64, 9, 1e5f);  // 2^-24 is 6e-8
  EXPECT_LT(relative_error(decoded(codec, quiet, 64, options), quiet), 0.8);
  EXPECT_LT(relative_error(decoded(codec, loud, 64, options), loud), 0.8);
}

TEST(VectorCodec, RefusesWhatIsNoCodebookOfTheHead) {
  const auto refused = [](CodecOptions options, const std::string& part) {
    try {
      find_codec("vector").encode(nullptr, 0, 64, options);
      ADD_FAILURE() << "took it: " << part;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({}, "no codebook");
  refused(vector_options({}), "0 channels in all, the head dim is 64");
  refused(vector_options(codebook(60, 4, 8)), "60 channels in all, the head dim is 64");
  refused(vector_options(codebook({{65, 2}})), "group 0 has 65 channels, expected 1 to 64");
  refused(vector_options({.groups = {{0, 0, {}}}}), "group 0 has 0 channels");
  refused(vector_options(codebook({{32, 3}, {32, 17}})), "group 1 has 17 bits, expected 0 to 16");
  refused(vector_options({.groups = {{64, -1, {}}}}), "group 0 has -1 bits");
  auto grouped = vector_options(codebook(64, 4, 8));
  grouped.groups = 2;
  refused(grouped, "--groups 1, found 2");
  auto book = codebook(64, 4, 8);
  book.groups[3].words.pop_back();
  refused(vector_options(book), "group 3 of 4 channels and 8 bits has 1023 numbers, expected 1024");
  for (const float bad : {NAN, INFINITY, -INFINITY, 1e18f}) {
    book = codebook(64, 4, 8);
    book.groups[15].words[4 * 200 + 2] = bad;
    refused(vector_options(book), "group 15, codeword 200");
  }
}

}  // namespace
}  // namespace oscar::test
