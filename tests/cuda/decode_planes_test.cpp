// Decode over bit planes on the GPU against double arithmetic on the same codes.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/decode_on_device.h"
#include "tests/cuda/plane_cache.h"

namespace oscar::cuda {
namespace {

Decoded run(const PlaneCache& c, const DecodeInputs& in, const DeviceInfo& device, const How& how = {}) {
  DeviceCache on(c, in);
  const DeviceArray<uint8_t> k_bits(c.k_bits), v_bits(c.v_bits);
  const DeviceArray<float> k_steps(c.k_steps), v_steps(c.v_steps);
  on.in.k_levels = {k_steps.get(), k_bits.get()};
  on.in.v_levels = {v_steps.get(), v_bits.get()};
  return decode_on_device(c.format, c.batch(), on.in, device, how);
}

double error_of(const PlaneCache& c, const DecodeInputs& in, const DeviceInfo& device, const How& how = {}) {
  return error_against_reference(run(c, in, device, how), c.format, c.batch(), in);
}

// Two bits a channel, or what is said, in the proportions of a fit.
SideFormat planes(int dim, bool norm) {
  return {CodeKind::planes, 1, norm, {dim, dim * 5 / 64 * 8, dim / 4, dim / 64 * 8}};
}
CacheFormat format_of(int dim, int kv_heads, int group, const SideFormat& k, const SideFormat& v) {
  return {CacheLayout::native, dim, kv_heads, group, k, v};
}
std::string name(const CacheFormat& f) {
  std::string text = "dim " + std::to_string(f.dim) + ", group " + std::to_string(f.group);
  for (const SideFormat& side : {f.k, f.v}) {
    for (const int n : side.planes) text += ", " + std::to_string(n);
    text += side.norm ? " norm" : "";
  }
  return text;
}

TEST(DecodePlanes, EveryDimAndNorm) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const int norms : {0, 1, 2, 3}) {
      const CacheFormat f =
          format_of(dim, 2, 4, planes(dim, (norms & 1) != 0), planes(dim, (norms & 2) != 0));
      PlaneCacheMaker maker(f, dim + 10 * norms);
      for (const int length : {1, 63, 64, 65, 1000, 4097}) maker.sequence(0, length);
      const PlaneCache c = maker.make(false);
      worst.check(error_of(c, c.inputs(), device), name(f));
    }
  }
}

TEST(DecodePlanes, LengthsOfPlanes) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128}) {
    const std::initializer_list<SideFormat> sides = {{CodeKind::planes, 1, false, {dim}},
                                                     {CodeKind::planes, 1, false, {dim, dim}},
                                                     {CodeKind::planes, 1, true, {dim - 8, 24, 24}},
                                                     {CodeKind::planes, 1, false, {dim, dim, dim, dim}},
                                                     {CodeKind::planes, 1, false, {8, 8, 8, 8}}};
    for (const SideFormat& k : sides) {
      for (const SideFormat& v : sides) {
        const CacheFormat f = format_of(dim, 2, 4, k, v);
        const PlaneCache c = PlaneCacheMaker(f, dim).sequence(0, 700).sequence(0, 70).make(false);
        worst.check(error_of(c, c.inputs(), device), name(f));
      }
    }
  }
}

TEST(DecodePlanes, EveryRatioOfQueryToKvHeads) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128}) {
    for (int group = 1; group <= 16; ++group) {
      const CacheFormat f =
          format_of(dim, 3, group, planes(dim, group % 2 == 0), planes(dim, group % 3 == 0));
      const PlaneCache c =
          PlaneCacheMaker(f, 100 + group).sequence(0, 65).sequence(0, 1300, 20).sequence(0, 64).make(false);
      worst.check(error_of(c, c.inputs(), device), name(f));
    }
  }
}

TEST(DecodePlanes, LongSequencesAreCutAndMerged) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const bool norm : {false, true}) {
    const CacheFormat f = format_of(128, 2, 4, planes(128, norm), planes(128, norm));
    const PlaneCache c =
        PlaneCacheMaker(f, 7).sequence(0, 20011).sequence(0, 1).sequence(0, 4097).make(false);
    worst.check(error_of(c, c.inputs(), device), name(f));
    worst.check(error_of(c, c.inputs(), device, {.fixed = true}), name(f) + " with a fixed grid");
    worst.check(error_of(c, c.inputs(), device, {.overlap = true}), name(f) + " overlapping");
  }
}

// One block takes all of it: every warp has more pages than it fetches the numbers of at once.
TEST(DecodePlanes, ManyPagesOfOneWarp) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  const CacheFormat f = format_of(64, 1, 4, planes(64, true), planes(64, false));
  const PlaneCache c = PlaneCacheMaker(f, 9).sequence(0, 70011).sequence(100, 300).make(false);
  worst.check(error_of(c, c.inputs(), device, {.blocks = 1}), name(f));
}

// Nothing averages out what rounding loses, as shorter sequences beside it would.
TEST(DecodePlanes, ALongSequenceByItself) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128, 256}) {
    for (const bool norm : {false, true}) {
      const CacheFormat f = format_of(dim, 2, 4, planes(dim, norm), planes(dim, norm));
      const PlaneCache c = PlaneCacheMaker(f, dim).sequence(0, 12000).make(false);
      worst.check(error_of(c, c.inputs(), device), name(f));
    }
  }
}

TEST(DecodePlanes, QueriesInFloat) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  const CacheFormat f = format_of(128, 2, 6, planes(128, false), planes(128, true));
  const PlaneCache c = PlaneCacheMaker(f, 21).sequence(0, 500, 33).make(false);
  std::vector<float> q;
  for (const uint16_t bits : c.q) q.push_back(1.001f * bf16_to_float(bits));
  DecodeInputs in = c.inputs();
  in.q = q.data();
  in.q_type = FloatType::f32;
  worst.check(error_of(c, in, device), name(f));
}

TEST(DecodePlanes, WindowsSinksMeansAndRanges) {
  OSCAR_NEEDS_DEVICE(device);
  Worst worst;
  for (const int dim : {64, 128}) {
    for (const bool norm : {false, true}) {
      const CacheFormat f = format_of(dim, 2, 4, planes(dim, norm), planes(dim, norm));
      const PlaneCache c = PlaneCacheMaker(f, 11 + dim)
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

TEST(DecodePlanes, SameBytesEveryTime) {
  OSCAR_NEEDS_DEVICE(device);
  const CacheFormat f = format_of(128, 8, 4, planes(128, false), planes(128, true));
  const PlaneCache c = PlaneCacheMaker(f, 3).sequence(0, 3000, 40).sequence(5, 64).make(false);
  const Decoded a = run(c, c.inputs(), device), b = run(c, c.inputs(), device);
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
}

TEST(DecodePlanes, RefusesWithASentence) {
  OSCAR_NEEDS_DEVICE(device);
  const CacheFormat f = format_of(128, 2, 4, planes(128, false), planes(128, false));
  const float some[64] = {};
  DecodeInputs in;
  in.q = in.table = reinterpret_cast<const int32_t*>(some);
  in.pages = reinterpret_cast<const uint8_t*>(some);
  DecodePlan plan;
  plan.blocks = plan.heads = 1;
  float o[1];
  const Status s = decode(f, in, plan, o, nullptr, {o, FloatType::f32}, false, nullptr);
  ASSERT_FALSE(s.ok());
  EXPECT_NE(std::string(s.what).find("steps and bits"), std::string::npos) << s.what;
}

}  // namespace
}  // namespace oscar::cuda
