// Every codec of the table against its own rule in double, and what each refuses.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "libcalib/names.h"
#include "tests/calib/codec_support.h"

namespace oscar::test {
namespace {

// One way to use a codec, for the tests that hold for every codec.
struct Case {
  const CodecInfo* codec;
  int dim;
  CodecOptions options;
  std::string name;
};

std::vector<Case> cases(const CodecInfo& codec) {
  std::vector<Case> cases;
  const auto add = [&](int dim, CodecOptions options) {
    const auto& book = options.codebook;
    cases.push_back({&codec, dim, options,
                     fmt::format("{}, D = {}, G = {}, clip {}{}", codec.name, dim, options.groups,
                                 options.clip, book ? ", " + shape_name(*book) : "")});
  };
  const auto scalar = [&](std::initializer_list<int> dims, std::initializer_list<int> group_counts,
                          std::initializer_list<double> clips) {
    for (const int dim : dims) {
      for (const int groups : group_counts) {
        for (const double clip : clips) add(dim, {.groups = groups, .clip = clip});
      }
    }
  };
  if (codec.name == "sglang-prefill" || codec.name == "sglang-prefill-bf16") {
    scalar({4, 64, 128, 256}, {1, 4}, {0.0, 0.92, 0.96, 1.0});
  } else if (codec.name == "sglang-flush") {
    scalar({4, 32, 64, 128, 256}, {1, 2, 4}, {0.0, 0.92, 0.96, 1.0});
  } else if (codec.name == "sglang-fused" || codec.name == "sglang-lloyd-max") {
    scalar({4, 32, 64, 128, 256}, {1}, {0.0, 0.92, 0.96, 1.0});
  } else if (codec.name == "lloyd-max" || codec.name == "nova-scalar-int2") {
    scalar({4, 64, 80, 96, 128, 256}, {1}, {0.0, 0.96});
  } else if (codec.name == "int4") {
    scalar({2, 64, 80, 96, 128, 256}, {1, 2}, {0.0});
  } else if (codec.name == "kivi-k" || codec.name == "kitty-k") {
    scalar({1, 4, 30, 64, 96, 128, 256}, {1}, {0.0});
  } else if (codec.name == "kivi-v") {
    scalar({32, 64, 96, 128, 256}, {1}, {0.0});
  } else if (codec.name == "llamacpp-q2_0") {
    scalar({128, 256, 384}, {1}, {0.0, 0.92, 0.96, 1.0});
  } else if (codec.name == "qjl") {
    for (const int dim : {30, 64, 96, 128}) {
      add(dim, vector_options(codebook(dim, 2, 3)));
      auto options = vector_options(codebook(dim, dim / 2, 5, true));
      options.seed = 9;
      add(dim, options);
    }
  } else if (codec.name == "vector") {
    for (const bool norm : {false, true}) {
      for (const int dim : {64, 96, 128, 256}) add(dim, vector_options(codebook(dim, 4, 8, norm)));
      add(64, vector_options(codebook(64, 8, 8, norm)));
      add(64, vector_options(codebook(64, 4, 10, norm)));
      add(64, vector_options(codebook(64, 1, 3, norm)));
      add(64, vector_options(codebook(64, 64, 9, norm)));
      // Every size that decoding treats apart, no bits at all, indices over byte borders, rows of 67 bits.
      add(96, vector_options(codebook(
                  {{4, 12}, {1, 8}, {20, 5}, {2, 1}, {30, 0}, {16, 7}, {1, 0}, {5, 11}, {8, 13}, {9, 10}},
                  norm)));
    }
  } else {
    scalar({4, 64, 96, 128, 256}, {1}, {0.0, 0.96});
  }
  return cases;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& codec : codec_table()) {
    for (auto& one : cases(codec)) all.push_back(std::move(one));
  }
  return all;
}

// Equal to rounding, but for the rare element that sits on the border of two codes in one precision and not
// in the other: one of a thousand.
void expect_same(const std::vector<float>& packed, const std::vector<double>& exact) {
  double largest = 0;
  for (const double x : exact) largest = std::max(largest, std::abs(x));
  int64_t borders = 0;
  for (size_t i = 0; i < packed.size(); ++i) borders += !(std::abs(packed[i] - exact[i]) <= 1e-5 * largest);
  EXPECT_LE(borders, static_cast<int64_t>(packed.size() / 1000));
}

TEST(Codec, PackedRowsEqualTheRuleInDouble) {
  for (const auto& [codec, dim, options, name] : all_cases()) {
    SCOPED_TRACE(name);
    auto rows = normal(static_cast<size_t>(200 * dim), 7);
    for (int64_t r = 0; r < 200; r += 3) rows[static_cast<size_t>(r * dim + r % dim)] *= 40;  // outliers
    expect_same(decoded(*codec, rows, dim, options), reference(*codec, rows, dim, options));
  }
}

TEST(Codec, TakesAnyNumberOfRows) {
  for (const auto& [codec, dim, options, name] : all_cases()) {
    SCOPED_TRACE(name);
    for (const int n : {0, 1, 33}) {
      const auto rows = normal(static_cast<size_t>(n * dim), 11);
      expect_same(decoded(*codec, rows, dim, options), reference(*codec, rows, dim, options));
    }
    EXPECT_EQ(codec->encode(nullptr, 0, dim, options)->bytes(), 0u);
  }
}

TEST(Codec, DegenerateRowsFollowTheRuleToo) {
  for (const auto& [codec, dim, options, name] : all_cases()) {
    std::map<std::string, std::vector<float>> kinds;
    kinds["zeros"].assign(static_cast<size_t>(40 * dim), 0.0f);
    kinds["constant"].assign(static_cast<size_t>(40 * dim), -2.5f);
    kinds["tiny"] = normal(static_cast<size_t>(40 * dim), 5, 1e-9f);
    kinds["small"] = normal(static_cast<size_t>(40 * dim), 5, 2e-6f);  // subnormal in fp16
    kinds["huge outlier"] = normal(static_cast<size_t>(40 * dim), 6);
    for (int64_t r = 0; r < 40; ++r) kinds["huge outlier"][static_cast<size_t>(r * dim + r % dim)] = 3e4f;
    for (const auto& [kind, rows] : kinds) {
      SCOPED_TRACE(name + ", " + kind);
      const auto packed = decoded(*codec, rows, dim, options);
      expect_same(packed, reference(*codec, rows, dim, options));
      EXPECT_TRUE(std::ranges::all_of(packed, [](float x) { return std::isfinite(x); }));
    }
  }
}

TEST(Codec, ReadsAnyRange) {
  for (const auto& [codec, dim, options, name] : all_cases()) {
    SCOPED_TRACE(name);
    const auto rows = normal(static_cast<size_t>(150 * dim), 3);
    const auto all = decoded(*codec, rows, dim, options);
    const auto codes = codec->encode(rows.data(), 150, dim, options);
    for (const auto& [first, count] : {std::pair{0, 1}, {21, 7}, {31, 2}, {60, 70}, {149, 1}, {150, 0}}) {
      std::vector<float> part(static_cast<size_t>(count * dim));
      codes->decode(first, count, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + int64_t{first} * dim)) << first;
    }
  }
}

TEST(Codec, BitsAreThoseOfTheBytesHeld) {
  const auto rows = normal(10 * 128, 1);
  const auto bits = [&](const char* name, int groups) {
    const CodecOptions options{.groups = groups, .clip = 1};
    return 8.0 * static_cast<double>(find_codec(name).encode(rows.data(), 10, 128, options)->bytes()) /
           (10 * 128);
  };
  EXPECT_DOUBLE_EQ(bits("sglang-prefill", 1), 2.5);  // 32 + 8 bytes a row
  EXPECT_DOUBLE_EQ(bits("sglang-prefill", 4), 4.0);  // 32 + 32
  EXPECT_DOUBLE_EQ(bits("sglang-prefill-bf16", 2), 2.5);
  const auto vector_bits = [&](const Codebook& book) {
    const auto codes =
        find_codec("vector").encode(rows.data(), 1280 / book.dim(), book.dim(), vector_options(book));
    return 8.0 * static_cast<double>(codes->bytes()) / 1280;
  };
  EXPECT_DOUBLE_EQ(vector_bits(codebook(64, 4, 8)), 2);
  EXPECT_DOUBLE_EQ(vector_bits(codebook(64, 4, 8, true)), 2.25);  // 16 + 2 bytes a row
  EXPECT_DOUBLE_EQ(vector_bits(codebook(128, 4, 8, true)), 2.125);
  EXPECT_DOUBLE_EQ(vector_bits(codebook(64, 8, 8)), 1);
  EXPECT_DOUBLE_EQ(vector_bits(codebook(64, 4, 10)), 2.5);
  EXPECT_DOUBLE_EQ(vector_bits(codebook({{4, 9}, {60, 0}})), 0.25);  // 9 bits take 2 bytes
  for (const char* name :
       {"sglang-lloyd-max", "sglang-flush", "sglang-fused", "lloyd-max", "nova-scalar-int2"}) {
    EXPECT_DOUBLE_EQ(bits(name, 1), 2.5) << name;
  }
  EXPECT_DOUBLE_EQ(bits("sglang-flush", 2), 3);
  const auto bits_of_64 = [&](const char* name) {
    return static_cast<double>(find_codec(name).encode(rows.data(), 20, 64, {})->bytes()) * 8 / 1280;
  };
  EXPECT_DOUBLE_EQ(bits_of_64("sglang-prefill"), 3);
  EXPECT_DOUBLE_EQ(bits_of_64("lloyd-max"), 3);
  EXPECT_DOUBLE_EQ(bits_of_64("int4"), 4.5);
  EXPECT_DOUBLE_EQ(bits_of_64("kivi-v"), 3);
  EXPECT_DOUBLE_EQ(bits("int4", 1), 4.25);  // 64 + 4 bytes
  EXPECT_DOUBLE_EQ(bits("int4", 4), 5);
  EXPECT_DOUBLE_EQ(bits("kivi-v", 1), 3);
  EXPECT_DOUBLE_EQ(bits("llamacpp-q2_0", 1), 3);
  EXPECT_DOUBLE_EQ(bits("kivi-k", 1), (3 + 4) * 8 / 10.0);  // one page of 10 tokens: 3 bytes and a range of 4
  const auto page_bits = [&](const char* name, int tokens, int dim) {
    const std::vector<float> page(static_cast<size_t>(tokens * dim));
    return 8.0 * static_cast<double>(find_codec(name).encode(page.data(), tokens, dim, {})->bytes()) /
           (tokens * dim);
  };
  EXPECT_DOUBLE_EQ(page_bits("kivi-k", 1024, 64), 3);
  EXPECT_DOUBLE_EQ(page_bits("kitty-k", 1024, 64), 2.5 + 32.0 / 128 + 1.0 / 128);
  EXPECT_DOUBLE_EQ(page_bits("kitty-k", 1024, 128), 2.5 + 32.0 / 128 + 1.0 / 128);
  const auto qjl = find_codec("qjl").encode(rows.data(), 20, 64, vector_options(codebook(64, 4, 8)));
  EXPECT_DOUBLE_EQ(8.0 * static_cast<double>(qjl->bytes()) / 1280, 2 + 1 + 0.25);
  EXPECT_DOUBLE_EQ(bits("bf16", 1), 16);
  EXPECT_DOUBLE_EQ(bits("none", 1), 32);
}

TEST(Codec, EachIsDescribed) {
  const auto text = read(fs::path(OSCAR_SOURCE_DIR) / "docs" / "codecs.md");
  for (const auto& codec : codec_table()) {
    EXPECT_NE(text.find(fmt::format("`{}`", codec.name)), std::string::npos) << codec.name;
  }
}

TEST(Codec, Refusals) {
  const auto refused = [](const char* name, int dim, CodecOptions options, const char* part) {
    try {
      find_codec(name).encode(nullptr, 0, dim, options);
      ADD_FAILURE() << name << " took D = " << dim << ", G = " << options.groups << ", clip " << options.clip;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  for (const int dim : {0, 2, 3, 80, 96, 192}) refused("sglang-prefill", dim, {}, "powers of two");
  refused("sglang-prefill", 64, {.groups = 3, .clip = .9}, "3 groups do not divide the head dim 64");
  refused("sglang-prefill", 64, {.groups = 0, .clip = .9}, "0 groups");
  refused("sglang-prefill", 64, {.groups = 2, .clip = 0}, "2 groups without clipping");
  refused("sglang-prefill", 64, {.groups = 1, .clip = 1.5}, "clip ratio 1.5");
  refused("sglang-prefill", 64, {.groups = 1, .clip = NAN}, "clip ratio");
  for (const char* name : {"sglang-lloyd-max", "sglang-flush", "sglang-fused"}) {
    for (const int dim : {0, 2, 80, 96}) refused(name, dim, {}, "powers of two");
    refused(name, 64, {.groups = 1, .clip = NAN}, "clip ratio");
    refused(name, 64, {.groups = 3, .clip = 0}, "3 groups do not divide the head dim 64");
  }
  for (const char* name : {"sglang-lloyd-max", "sglang-fused", "lloyd-max", "nova-scalar-int2"}) {
    refused(name, 64, {.groups = 2, .clip = 0}, "a row is one group, expected --groups 1, found 2");
  }
  for (const char* name : {"lloyd-max", "nova-scalar-int2"}) {
    refused(name, 66, {}, "head dim 66");
    refused(name, 64, {.groups = 1, .clip = 1.01}, "clip ratio 1.01");
  }
  for (const int dim : {0, 64, 96, 192}) refused("llamacpp-q2_0", dim, {}, "multiple of 128");
  refused("llamacpp-q2_0", 128, {.groups = 4, .clip = 0}, "one group");
  refused("llamacpp-q2_0", 128, {.groups = 1, .clip = 2}, "clip ratio 2");
  refused("int4", 63, {}, "head dim 63");
  refused("int4", 64, {.groups = 3, .clip = 0}, "3 groups do not divide the head dim 64");
  for (const int dim : {16, 80}) refused("kivi-v", dim, {}, "32 channels, which must divide it");
  for (const char* name : {"kivi-k", "kivi-v", "kitty-k"}) {
    refused(name, 64, {.groups = 2, .clip = 0}, "expected --groups 1, found 2");
  }
  refused("qjl", 64, {}, "codec qjl: no codebook");
  refused("none", 64, {.groups = 2, .clip = 0}, "no groups");
  EXPECT_NO_THROW(find_codec("sglang-prefill").encode(nullptr, 0, 64, {.groups = 2, .clip = 1.0}));
  try {
    find_codec("int3");
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), ("unknown codec 'int3'; known: " + known_names(codec_table())).c_str());
  }
}

}  // namespace
}  // namespace oscar::test
