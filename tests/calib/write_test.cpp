// kernels/write.h against the codecs whose rules it follows: what is read back is the same, to the bit.
#include "kernels/write.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/int2.h"
#include "libcalib/codecs/codec.h"

namespace oscar {
namespace {

constexpr int kDim = 128, kRows = 300;

std::vector<float> rows() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kDim);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = normal(random) * (i / kDim % 7 == 3 ? 0.f : 1.f) + (i / kDim % 5 == 1 ? 9.f : 0.f);
  return x;
}

std::vector<float> written(const std::vector<float>& x, const WriteRule& rule, int groups) {
  const CacheFormat format{.layout = CacheLayout::sglang,
                           .dim = kDim,
                           .kv_heads = 1,
                           .k = {.groups = groups},
                           .v = {.groups = groups}};
  std::vector<int64_t> slots(kRows);
  for (int i = 0; i < kRows; ++i) slots[i] = kRows - 1 - i;
  std::vector<uint8_t> codes(kRows * kDim / 4);
  std::vector<float> scale_zero(kRows * 2 * groups), out(kRows * kDim), ordered(out.size());
  WriteRows in;
  in.rows = x.data();
  in.type = FloatType::f32;
  in.tokens = kRows;
  in.slots = slots.data();
  WriteTarget target;
  target.codes = codes.data();
  target.scale_zero = scale_zero.data();
  const Status status = write(format, rule, in, target);
  EXPECT_TRUE(status.ok()) << status.what;
  int2::decode(kDim, groups, codes.data(), scale_zero.data(), kRows, out.data());
  for (int i = 0; i < kRows; ++i) std::copy_n(out.data() + slots[i] * kDim, kDim, ordered.data() + i * kDim);
  return ordered;
}

void expect_codec(const char* name, const WriteRule& rule, int groups) {
  const auto x = rows();
  CodecOptions options;
  options.clip = rule.clip;
  options.groups = groups;
  std::vector<float> expected(x.size());
  find_codec(name).encode(x.data(), kRows, kDim, options)->decode(0, kRows, expected.data());
  EXPECT_EQ(written(x, rule, groups), expected) << name;
}

TEST(Write, FollowsTheCodecs) {
  expect_codec("sglang-prefill", {.clip = 0.96}, 1);
  expect_codec("sglang-prefill", {.clip = 0.92}, 4);
  expect_codec("sglang-flush", {.clip = 0.96, .bisect = true}, 1);
  expect_codec("sglang-flush", {.clip = 0.92, .bisect = true}, 2);
  expect_codec("sglang-fused", {.clip = 0.96, .bisect = true, .round_bf16 = false}, 1);
  const double outer = 1.5095585584640503;
  expect_codec(
      "sglang-lloyd-max",
      {.step = static_cast<float>(2 * outer / 3 * 1.16), .threshold = static_cast<float>(0.9810652732849121)},
      1);
  expect_codec("lloyd-max", {.clip = 0.96, .step = 0.9957f, .threshold = 0.9957f}, 1);
}

TEST(Write, WhatIsMissingIsSaid) {
  WriteRows in;
  in.tokens = 1;
  EXPECT_FALSE(write({.dim = 128, .kv_heads = 1}, {}, in, {}).ok());
  EXPECT_FALSE(write({.dim = 100, .kv_heads = 1}, {}, {}, {}).ok());
}

}  // namespace
}  // namespace oscar
