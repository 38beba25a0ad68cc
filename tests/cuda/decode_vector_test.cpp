// Decode over vector codes on the GPU against double arithmetic on the same codes.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/decode_on_device.h"
#include "tests/cuda/vector_cache.h"

namespace oscar::cuda {
namespace {

using enum CodeKind;

Decoded run(const VectorCache& c, const DecodeInputs& in, const DeviceInfo& device, const How& how = {}) {
  DeviceCache on(c, in);
  const DeviceArray<int8_t> k_words(c.k_words), v_words(c.v_words);
  const DeviceArray<float> k_scales(c.k_word_scales), v_scales(c.v_word_scales);
  on.in.k_book = {k_words.get(), k_scales.get()};
  on.in.v_book = {v_words.get(), v_scales.get()};
  return decode_on_device(c.format, c.batch(), on.in, device, how);
}

double error_of(const VectorCache& c, const DecodeInputs& in, const DeviceInfo& device, const How& how = {}) {
  return error_against_reference(run(c, in, device, how), c.format, c.batch(), in);
}

std::string name(const CacheFormat& f) {
  const auto side = [](const SideFormat& s) {
    return std::string(s.kind == int2        ? "int2"
                       : s.kind == vector4x8 ? "4x8"
                                             : "8x8") +
           (s.norm ? " norm" : "");
  };
  return "dim " + std::to_string(f.dim) + ", group " + std::to_string(f.group) + ", " + side(f.k) + " / " +
         side(f.v);
}

CacheFormat format_of(int dim, int kv_heads, int group, SideFormat k, SideFormat v) {
  return {CacheLayout::native, dim, kv_heads, group, k, v};
}

TEST(DecodeVector, EveryPairOfSides) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128}) {
    for (const CodeKind k : {vector4x8, vector8x8, int2}) {
      for (const CodeKind v : {vector4x8, vector8x8, int2}) {
        for (const int norms : {0, 1, 2, 3}) {
          if ((k == int2 && (v == int2 || norms & 1)) || (v == int2 && norms & 2)) continue;
          const CacheFormat f = format_of(dim, 2, 4, {k, 1, (norms & 1) != 0}, {v, 1, (norms & 2) != 0});
          VectorCacheMaker maker(f, dim + 10 * norms);
          for (const int length : {1, 63, 64, 65, 1000, 2113}) maker.sequence(0, length);
          const VectorCache c = maker.make(false);
          worst.check(error_of(c, c.inputs(), device), name(f));
        }
      }
    }
  }
}

TEST(DecodeVector, EveryRatioOfQueryToKvHeads) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128}) {
    for (const CodeKind kind : {vector4x8, vector8x8}) {
      for (const int group : {1, 2, 3, 5, 8, 16}) {
        const CacheFormat f = format_of(dim, 3, group, {kind}, {kind});
        const VectorCache c = VectorCacheMaker(f, 100 + group)
                                  .sequence(0, 65)
                                  .sequence(0, 1300, 20)
                                  .sequence(0, 64)
                                  .make(false);
        worst.check(error_of(c, c.inputs(), device), name(f));
      }
    }
  }
}

TEST(DecodeVector, LongSequencesAreCutAndMerged) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const CodeKind kind : {vector4x8, vector8x8}) {
    const CacheFormat f = format_of(128, 2, 4, {kind, 1, true}, {kind});
    const VectorCache c =
        VectorCacheMaker(f, 7).sequence(0, 20011).sequence(0, 1).sequence(0, 4097).make(false);
    worst.check(error_of(c, c.inputs(), device), name(f));
    worst.check(error_of(c, c.inputs(), device, {.fixed = true}), name(f) + " with a fixed grid");
    worst.check(error_of(c, c.inputs(), device, {.overlap = true}), name(f) + " overlapping");
  }
}

// One block takes all of it: every warp has more pages than it fetches the numbers of at once.
TEST(DecodeVector, ManyPagesOfOneWarp) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const CodeKind kind : {vector4x8, vector8x8}) {
    const CacheFormat f = format_of(64, 1, 4, {kind}, {kind});
    const VectorCache c = VectorCacheMaker(f, 9).sequence(0, 70011).sequence(100, 300).make(false);
    worst.check(error_of(c, c.inputs(), device, {.blocks = 1}), name(f));
  }
}

// Nothing averages out what rounding loses, as shorter sequences beside it would.
TEST(DecodeVector, ALongSequenceByItself) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128}) {
    for (const auto& [k, v] : std::initializer_list<std::pair<SideFormat, SideFormat>>{
             {{vector4x8}, {vector4x8}},
             {{vector4x8, 1, true}, {vector4x8, 1, true}},
             {{vector8x8, 1, true}, {vector8x8, 1, true}},
             {{int2}, {vector8x8}},
             {{vector4x8}, {int2}}}) {
      const CacheFormat f = format_of(dim, 2, 4, k, v);
      const VectorCache c = VectorCacheMaker(f, dim).sequence(0, 12000).make(false);
      worst.check(error_of(c, c.inputs(), device), name(f));
    }
  }
}

TEST(DecodeVector, QueriesInFloat) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const CodeKind k : {vector4x8, vector8x8, int2}) {
    const CacheFormat f = format_of(128, 2, 6, {k}, {vector4x8});
    const VectorCache c = VectorCacheMaker(f, 21).sequence(0, 500, 33).make(false);
    std::vector<float> q;
    for (const uint16_t bits : c.q) q.push_back(1.001f * bf16_to_float(bits));
    DecodeInputs in = c.inputs();
    in.q = q.data();
    in.q_type = FloatType::f32;
    worst.check(error_of(c, in, device), name(f));
  }
}

TEST(DecodeVector, WindowsSinksMeansAndRanges) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128}) {
    for (const auto& [k, v] : std::initializer_list<std::pair<SideFormat, SideFormat>>{
             {{vector4x8}, {vector4x8}},
             {{vector8x8, 1, true}, {vector8x8}},
             {{vector8x8}, {int2}},
             {{vector4x8, 1, true}, {vector8x8, 1, true}}}) {
      const CacheFormat f = format_of(dim, 2, 4, k, v);
      const VectorCache c = VectorCacheMaker(f, 11 + dim)
                                .sequence(0, 0, 5)
                                .sequence(0, 700, 320)
                                .sequence(70, 129, 17)
                                .sequence(0, 0)
                                .sequence(64, 3000, 1)
                                .make(true);
      DecodeInputs in = c.inputs();
      worst.check(error_of(c, in, device), name(f) + ", windows");
      in.sink_logits = c.sink_logits.data();
      worst.check(error_of(c, in, device), name(f) + ", sinks");
      in.k_mean = c.k_mean.data();
      in.v_mean = c.v_mean.data();
      worst.check(error_of(c, in, device), name(f) + ", means");
      in.softcap = 20;
      worst.check(error_of(c, in, device), name(f) + ", soft cap");
    }
  }
}

TEST(DecodeVector, SameBytesEveryTime) {
  OSCAR_NEEDS_DEVICE(device);
  for (const CodeKind kind : {vector4x8, vector8x8}) {
    const VectorCache c = VectorCacheMaker(format_of(128, 8, 4, {kind}, {kind}), 3)
                              .sequence(0, 3000, 40)
                              .sequence(5, 64)
                              .make(false);
    const Decoded a = run(c, c.inputs(), device), b = run(c, c.inputs(), device);
    EXPECT_EQ(a.o, b.o);
    EXPECT_EQ(a.lse, b.lse);
  }
}

TEST(DecodeVector, GroupsOfInt2BesideVectorsAreRefused) {
  OSCAR_NEEDS_DEVICE(device);
  const CacheFormat f = format_of(128, 2, 4, {vector4x8}, {int2, 2});
  const float some[64] = {};
  DecodeInputs in;
  in.q = in.table = reinterpret_cast<const int32_t*>(some);
  in.pages = reinterpret_cast<const uint8_t*>(some);
  in.k_book = {reinterpret_cast<const int8_t*>(some), some};
  DecodePlan plan;
  plan.blocks = plan.heads = 1;
  float o[1];
  EXPECT_FALSE(decode(f, in, plan, o, nullptr, {o, FloatType::f32}, false, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
