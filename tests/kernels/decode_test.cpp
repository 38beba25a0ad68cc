#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/half.h"
#include "tests/kernels/decode_sample.h"
#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Output {
  std::vector<float> o, lse;
  bool operator==(const Output&) const = default;
};
Output run(const KernelTable& level, const DecodeSample& sample) {
  Output out{std::vector<float>(sample.queries() * sample.format.dim, kNaN),
             std::vector<float>(sample.queries(), kNaN)};
  const Status s = decode_with(level, sample.format, sample.batch, sample.inputs,
                               {out.o.data(), FloatType::f32, out.lse.data()});
  EXPECT_TRUE(s.ok()) << s.what;
  return out;
}

// Each query head by itself: ||o - expected|| / ||expected||.
void compare(const DecodeShape& shape, double tolerance = 1e-5) {
  const CacheFormat& f = shape.format;
  const DecodeSample sample(shape);
  std::vector<double> o(sample.queries() * f.dim), lse(sample.queries());
  ASSERT_TRUE(decode_reference(f, sample.batch, sample.inputs, o.data(), lse.data()).ok());
  each_level([&](const KernelTable& level) {
    const Output out = run(level, sample);
    for (int64_t query = 0; query < sample.queries(); ++query) {
      const std::vector<double> got(out.o.begin() + query * f.dim, out.o.begin() + (query + 1) * f.dim),
          expected(o.begin() + query * f.dim, o.begin() + (query + 1) * f.dim);
      const bool zero = std::ranges::all_of(expected, [](double x) { return x == 0; });
      if (zero) {
        ASSERT_EQ(got, expected);
      } else {
        ASSERT_LE(relative_error(got, expected), tolerance)
            << "query " << query << " dim " << f.dim << " group " << f.group << " kinds "
            << static_cast<int>(f.k.kind) << " " << static_cast<int>(f.v.kind) << " groups " << f.k.groups
            << " " << f.v.groups << " end " << shape.ends[query / (f.kv_heads * f.group)];
      }
      if (std::isinf(lse[query])) {
        ASSERT_EQ(out.lse[query], lse[query]);
      } else {
        ASSERT_NEAR(out.lse[query], lse[query], tolerance * std::max(1.0, std::abs(lse[query])))
            << "query " << query;
      }
    }
  });
}

constexpr SideFormat kInt2{}, kInt2x2{CodeKind::int2, 2}, k4x8{CodeKind::vector4x8},
    k8x8{CodeKind::vector8x8}, k4x8n{CodeKind::vector4x8, 1, true}, k8x8n{CodeKind::vector8x8, 1, true};

// Bit planes in proportion to the head dimension: every kind of place, heads with room to spare.
SideFormat planes(int dim, bool norm) {
  return {CodeKind::planes, 1, norm, {dim, dim * 5 / 64 * 8, dim / 4, dim / 64 * 8}};
}

CacheFormat native(int dim, int group, SideFormat k, SideFormat v, int kv_heads = 2) {
  return {CacheLayout::native, dim, kv_heads, group, k, v};
}
CacheFormat sglang(int dim, int group, int groups, FloatType type = FloatType::f32) {
  const SideFormat side{CodeKind::int2, groups};
  return {CacheLayout::sglang, dim, 2, group, side, side, type};
}
// One of every kind that has its own code.
std::vector<CacheFormat> kinds(int dim, int group) {
  return {native(dim, group, kInt2, kInt2), native(dim, group, k4x8, k4x8), native(dim, group, k8x8n, k8x8n),
          native(dim, group, planes(dim, false), planes(dim, true)), sglang(dim, group, 1)};
}

TEST(Decode, EveryDimAndGroupsOfInt2) {
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (int groups = 1; groups <= dim / 32; ++groups) {
      if (dim % (32 * groups) != 0) continue;
      for (const int other : {1, dim / 32}) {
        compare({native(dim, 3, {CodeKind::int2, groups}, {CodeKind::int2, other}), {200}});
        compare({native(dim, 4, {CodeKind::int2, other}, {CodeKind::int2, groups}), {65}});
      }
    }
  }
}

TEST(Decode, EveryDimAndGroupsOfSglang) {
  for (const int dim : {64, 128, 256}) {
    for (const int groups : {1, 2, 4}) {
      for (const FloatType type : {FloatType::f32, FloatType::bf16})
        compare({sglang(dim, 3, groups, type), {200, 1}});
    }
  }
}

TEST(Decode, EveryDimAndLengthsOfPlanes) {
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const bool norm : {false, true}) {
      compare({native(dim, 3, planes(dim, norm), planes(dim, !norm)), {200, 65}, {3, 0}});
      const SideFormat one{CodeKind::planes, 1, norm, {dim - 8}}, two{CodeKind::planes, 1, norm, {dim, dim}},
          four{CodeKind::planes, 1, norm, {dim, dim, dim, dim}}, few{CodeKind::planes, 1, norm, {8, 8, 8}};
      compare({native(dim, 4, one, two), {130}});
      compare({native(dim, 2, four, few), {130}});
    }
  }
}

TEST(Decode, EveryPairOfKinds) {
  for (const int dim : {64, 128}) {
    for (const SideFormat& k : {kInt2, kInt2x2, k4x8, k8x8, k4x8n, k8x8n}) {
      for (const SideFormat& v : {kInt2, kInt2x2, k4x8, k8x8, k4x8n, k8x8n}) {
        compare({native(dim, 3, k, v), {300, 70}, {5, 0}});  // words by tables, and by rows
      }
    }
  }
}

TEST(Decode, EveryRatio) {
  for (int group = 1; group <= 16; ++group) {
    for (const CacheFormat& format : kinds(64, group)) compare({format, {260}, {}, {70}});
  }
}

TEST(Decode, Lengths) {
  for (const CacheFormat& format : kinds(64, 3)) {
    compare({format, {0, 1, 63, 64, 65, 191, 192, 1000, 4097}});
    compare({format, {0, 0, 1, 64, 2000}, {}, {0, 1, 64, 63, 1100}});
  }
  for (const CacheFormat& format : kinds(128, 1)) compare({format, {4096, 1023, 1025}, {}, {2, 65, 0}});
}

TEST(Decode, ManyTokens) {
  for (const CacheFormat& format : kinds(64, 3)) compare({format, {20011}, {}, {320}, 2});
}

TEST(Decode, RangesThatBeginAnywhere) {
  for (const CacheFormat& format : kinds(64, 3)) {
    compare({format, {500, 500, 500, 500, 500, 6000}, {1, 63, 64, 65, 500, 1100}, {0, 3, 0, 0, 7, 0}});
  }
}

TEST(Decode, AnAttentionSink) {
  for (const CacheFormat& format : kinds(64, 3)) {
    for (const int32_t where : {0, 70, 1500})
      compare({format, {2000, 100}, {}, {40, 40}, 1, 0, false, false, where});
  }
  // A logit of 60 is known to 60 2^-24 in float32, and so is what it weighs.
  compare({native(64, 3, kInt2, kInt2), {3000}, {}, {}, 1, 0, false, false, 2000, 60}, 1e-4);
  compare({native(64, 3, k4x8, k8x8), {3000}, {}, {}, 6, 0, false, false, 2000}, 1e-4);
}

TEST(Decode, CapsSinksAndMeans) {
  for (const CacheFormat& format : kinds(128, 2)) {
    for (const float cap : {0.f, 3.f, 30.f}) {
      for (const bool sinks : {false, true}) {
        for (const bool means : {false, true}) {
          if (cap > 0 || sinks || means)
            compare({format, {300, 0, 0}, {}, {50, 60, 0}, 2, cap, sinks, means});
        }
      }
    }
  }
}

TEST(Decode, TypesOfQueriesAndOutputs) {
  DecodeSample sample({native(64, 3, kInt2, kInt2), {300}});
  const auto* bits = static_cast<const uint16_t*>(sample.inputs.q);
  std::vector<float> q;
  std::vector<uint16_t> half;
  for (int64_t i = 0; i < sample.queries() * 64; ++i) {
    q.push_back(bf16_to_float(bits[i]));
    half.push_back(float_to_half(q.back()));
    q.back() = half_to_float(half.back());  // both of them hold it
  }
  each_level([&](const KernelTable& level) {
    sample.inputs.q = q.data();
    sample.inputs.q_type = FloatType::f32;
    const Output expected = run(level, sample);
    sample.inputs.q = half.data();
    sample.inputs.q_type = FloatType::f16;
    EXPECT_TRUE(run(level, sample) == expected);
    std::vector<uint16_t> o(expected.o.size());
    ASSERT_TRUE(
        decode_with(level, sample.format, sample.batch, sample.inputs, {o.data(), FloatType::bf16, nullptr})
            .ok());
    for (size_t i = 0; i < o.size(); ++i) {
      ASSERT_NEAR(bf16_to_float(o[i]), expected.o[i], std::abs(expected.o[i]) / 256);
    }
  });
}

TEST(Decode, SameBitsWhateverTheThreadsAndTheCompany) {
  const int threads = omp_get_max_threads();
  for (const CacheFormat& format : kinds(64, 3)) {
    DecodeSample sample({format, {9000, 100, 3000}, {}, {300, 5, 0}});
    each_level([&](const KernelTable& level) {
      omp_set_num_threads(1);
      const Output one = run(level, sample);
      for (const int count : {2, 5}) {
        omp_set_num_threads(count);
        EXPECT_TRUE(run(level, sample) == one) << count << " threads";
      }
      const DecodeBatch all = sample.batch;
      const auto* q = static_cast<const uint16_t*>(sample.inputs.q);
      for (int b = 0; b < 3; ++b) {
        sample.batch = {1, nullptr, all.end + b, all.table_start + b, all.exact + b, all.exact_start + b};
        const int64_t queries = sample.queries(), values = queries * 64;
        sample.inputs.q = q + b * values;
        const Output alone = run(level, sample);
        EXPECT_TRUE(std::ranges::equal(alone.o, std::span(one.o).subspan(b * values, values)))
            << "sequence " << b;
        EXPECT_TRUE(std::ranges::equal(alone.lse, std::span(one.lse).subspan(b * queries, queries)));
      }
      sample.batch = all;
      sample.inputs.q = q;
    });
  }
  omp_set_num_threads(threads);
}

TEST(Decode, TheChosenLevelIsCalled) {
  const DecodeSample sample({native(64, 3, kInt2, k4x8), {300}});
  Output out{std::vector<float>(sample.queries() * 64), std::vector<float>(sample.queries())};
  ASSERT_TRUE(
      decode(sample.format, sample.batch, sample.inputs, {out.o.data(), FloatType::f32, out.lse.data()})
          .ok());
  const char* name = std::getenv("OSCAR_CPU");
  EXPECT_TRUE(out == run(choose_level(name ? name : ""), sample));
}

TEST(Decode, NoSequences) {
  EXPECT_TRUE(decode(native(64, 3, kInt2, kInt2), {}, {}, {}).ok());
}

void refuses(CacheFormat format, const std::string& why, void (*spoil)(DecodeSample&) = nullptr) {
  DecodeSample sample({native(64, 1, kInt2, k4x8), {70}, {}, {3}});
  sample.format = format;
  if (spoil) spoil(sample);
  std::vector<float> o(4096);
  const Status s = decode(sample.format, sample.batch, sample.inputs, {o.data(), FloatType::f32, nullptr});
  ASSERT_FALSE(s.ok()) << why;
  EXPECT_NE(std::string(s.what).find(why), std::string::npos) << s.what;
}

TEST(Decode, RefusesWithASentence) {
  const CacheFormat good = native(64, 1, kInt2, k4x8);
  refuses(native(80, 1, kInt2, kInt2), "head dimensions 64, 96");
  refuses(native(96, 1, k4x8, kInt2), "64 or 128");
  refuses(native(64, 17, kInt2, kInt2), "1 to 16 query heads");
  refuses(native(64, 1, {CodeKind::int2, 3}, kInt2), "groups");
  refuses(native(64, 1, {CodeKind::int2, 1, true}, kInt2), "row norms");
  refuses(sglang(96, 1, 1), "64, 128 or 256");
  refuses(native(64, 1, planes(64, false), kInt2), "both bit planes");
  refuses(native(64, 1, planes(64, false), planes(64, false)), "steps and bits");
  refuses(good, "no pages", [](DecodeSample& s) { s.inputs.pages = nullptr; });
  refuses(good, "codebook", [](DecodeSample& s) { s.inputs.v_book.words = nullptr; });
  refuses(good, "table", [](DecodeSample& s) { s.inputs.table = nullptr; });
  refuses(good, "slots", [](DecodeSample& s) { s.inputs.exact_slots = nullptr; });
  refuses(good, "no queries", [](DecodeSample& s) { s.inputs.q = nullptr; });
  refuses(good, "negative number of seq", [](DecodeSample& s) { s.batch.sequences = -1; });
  refuses(good, "first > end", [](DecodeSample& s) {
    static const int32_t first = 71;
    s.batch.first = &first;
  });
}

}  // namespace
}  // namespace oscar::test
