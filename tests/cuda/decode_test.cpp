// Decode on the GPU against double arithmetic on the same codes.
#include "kernels/decode.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/decode_on_device.h"

namespace oscar::cuda {
namespace {

Decoded run(const CodedCache& c, const DecodeInputs& in, const DeviceInfo& device, const How& how = {}) {
  return decode_on_device(c.format, c.batch(), DeviceCache(c, in).in, device, how);
}

double error_of(const CodedCache& c, const DecodeInputs& in, const DeviceInfo& device, const How& how = {}) {
  return error_against_reference(run(c, in, device, how), c.format, c.batch(), in);
}

double distance(const Decoded& a, const Decoded& b) {
  double difference = 0, power = 0;
  for (size_t i = 0; i < a.o.size(); ++i) {
    difference += std::pow(static_cast<double>(a.o[i]) - b.o[i], 2);
    power += std::pow(static_cast<double>(b.o[i]), 2);
  }
  return std::sqrt(difference / power);
}

CodedCache ragged(const CacheFormat& format, uint32_t seed, bool extras = false, int exact = 0) {
  CacheMaker maker(format, seed);
  for (const int length : {1, 63, 64, 65, 1000, 4097}) maker.sequence(0, length, exact);
  return maker.make(extras);
}

TEST(Decode, NativePagesOfEveryDimensionAndGroup) {
  OSCAR_NEEDS_DEVICE(device);
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const int groups : {1, 2, dim / 32}) {
      if (dim == 96 && groups == 2) continue;
      const CacheFormat f{CacheLayout::native, dim, 2, 4, {CodeKind::int2, groups}, {CodeKind::int2, groups}};
      const CodedCache c = ragged(f, dim + groups);
      EXPECT_LT(error_of(c, c.inputs(), device), kDecodeBound) << "dim " << dim << ", groups " << groups;
    }
  }
}

TEST(Decode, EveryRatioOfQueryToKvHeads) {
  OSCAR_NEEDS_DEVICE(device);
  for (const int dim : {64, 128, 256}) {
    for (const int group : {1, 2, 3, 5, 7, 8, 12, 16}) {
      const CacheFormat f{CacheLayout::native, dim, 3, group};
      CacheMaker maker(f, 100 + group);
      const CodedCache c = maker.sequence(0, 65).sequence(0, 1300).sequence(0, 64).make(false);
      EXPECT_LT(error_of(c, c.inputs(), device), kDecodeBound) << "dim " << dim << ", group " << group;
    }
  }
}

TEST(Decode, RowsOfTheServingEngine) {
  OSCAR_NEEDS_DEVICE(device);
  for (const int dim : {64, 128, 256}) {
    for (const int groups : {1, 2, 4}) {
      for (const FloatType meta : {FloatType::f32, FloatType::bf16}) {
        for (const int kv_heads : {8, 2, 3}) {
          const int group = kv_heads == 8 ? 4 : 7;
          const CacheFormat f{CacheLayout::sglang,      dim, kv_heads, group, {CodeKind::int2, groups},
                              {CodeKind::int2, groups}, meta};
          CacheMaker maker(f, dim + groups + kv_heads);
          const CodedCache c =
              maker.sequence(0, 1).sequence(0, 63).sequence(3, 1000, 30).sequence(0, 65).make(groups == 2);
          DecodeInputs in = c.inputs();
          if (groups == 2)
            in.k_mean = c.k_mean.data(), in.v_mean = c.v_mean.data(), in.sink_logits = c.sink_logits.data();
          EXPECT_LT(error_of(c, in, device), kDecodeBound)
              << "dim " << dim << ", groups " << groups << ", bf16 " << (meta == FloatType::bf16)
              << ", heads " << kv_heads;
        }
      }
    }
  }
}

TEST(Decode, LongSequencesAreCutAndMerged) {
  OSCAR_NEEDS_DEVICE(device);
  for (const CacheLayout layout : {CacheLayout::native, CacheLayout::sglang}) {
    CacheMaker maker({layout, 128, 2, 4}, 7);
    const CodedCache c = maker.sequence(0, 20011).sequence(0, 1).sequence(0, 63).make(false);
    EXPECT_LT(error_of(c, c.inputs(), device), kDecodeBound);
    EXPECT_LT(error_of(c, c.inputs(), device, {.fixed = true}), kDecodeBound) << "with a fixed grid";
    EXPECT_LT(error_of(c, c.inputs(), device, {.overlap = true}), kDecodeBound) << "one after the other";
  }
}

TEST(Decode, WindowsSinksMeansAndRanges) {
  OSCAR_NEEDS_DEVICE(device);
  for (const int dim : {64, 96, 128, 256}) {
    CacheMaker maker({CacheLayout::native, dim, 2, 4}, 11 + dim);
    const CodedCache c = maker.sequence(0, 0, 5)
                             .sequence(0, 700, 320)
                             .sequence(70, 129, 17)
                             .sequence(0, 0)
                             .sequence(64, 4096, 1)
                             .make(true);
    DecodeInputs in = c.inputs();
    EXPECT_LT(error_of(c, in, device), kDecodeBound) << "windows, dim " << dim;
    in.sink_logits = c.sink_logits.data();
    EXPECT_LT(error_of(c, in, device), kDecodeBound) << "sinks, dim " << dim;
    in.k_mean = c.k_mean.data();
    in.v_mean = c.v_mean.data();
    EXPECT_LT(error_of(c, in, device), kDecodeBound) << "means, dim " << dim;
    in.softcap = 20;
    EXPECT_LT(error_of(c, in, device), kDecodeBound) << "soft cap, dim " << dim;
  }
}

// Many pages for a block that is alone on its multiprocessor: in one segment, which its last block merges, and
// in several.
TEST(Decode, LongWorkForFewBlocks) {
  OSCAR_NEEDS_DEVICE(device);
  for (const auto& [dim, group] : {std::pair{64, 8}, {96, 4}, {128, 3}, {256, 4}}) {
    const CacheFormat f{CacheLayout::native, dim, 2, group};
    CacheMaker alone(f, dim), several(f, dim + 1);
    const CodedCache one = alone.sequence(0, 12000, 90).make(false),
                     many =
                         several.sequence(0, 9001).sequence(70, 12011, 133).sequence(0, 300, 320).make(true);
    DecodeInputs in = many.inputs();
    in.sink_logits = many.sink_logits.data();
    in.k_mean = many.k_mean.data();
    in.v_mean = many.v_mean.data();
    const Decoded spread = run(one, one.inputs(), device);
    EXPECT_LT(error_against_reference(spread, f, one.batch(), one.inputs()), kDecodeBound) << "dim " << dim;
    for (const int blocks : {2, 3, 8}) {
      EXPECT_LT(distance(run(one, one.inputs(), device, {.blocks = blocks}), spread), 5e-5)
          << "dim " << dim << ", " << blocks << " blocks";
      EXPECT_LT(error_of(many, in, device, {.blocks = blocks}), kDecodeBound)
          << "dim " << dim << ", several segments, " << blocks << " blocks";
    }
  }
}

TEST(Decode, SameBytesEveryTime) {
  OSCAR_NEEDS_DEVICE(device);
  const CodedCache c = ragged({CacheLayout::native, 128, 8, 4}, 3, false, 40);
  const Decoded a = run(c, c.inputs(), device), b = run(c, c.inputs(), device);
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
}

TEST(Decode, WhatItCannotReadIsRefused) {
  EXPECT_FALSE(check_format({CacheLayout::native, 80, 8, 4}).ok());
  EXPECT_FALSE(check_format({CacheLayout::sglang, 192, 8, 4}).ok());
  EXPECT_FALSE(check_format({CacheLayout::native, 128, 8, 17}).ok());
  EXPECT_FALSE(check_format({CacheLayout::native, 128, 8, 4, {CodeKind::int2, 3}}).ok());
  EXPECT_FALSE(check_format({CacheLayout::sglang, 128, 8, 4, {CodeKind::vector4x8}}).ok());
}

}  // namespace
}  // namespace oscar::cuda
