#include <omp.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

struct Coded {
  int dim = 0;
  std::vector<uint8_t> codes;
  std::vector<float> scale_zero;
  void encode(int d, const std::vector<float>& rows) {
    dim = d;
    codes.resize(rows.size() / 4);
    scale_zero.resize(rows.size() / d * 2);
    int2::encode_reference({.dim = d, .clip = .96}, rows.data(), static_cast<int64_t>(rows.size()) / d,
                           codes.data(), scale_zero.data());
  }
  CodeRows rows() const {
    return {[](const void* self, int64_t first, int64_t count, float* out) {
              const auto& c = *static_cast<const Coded*>(self);
              int2::decode_reference(c.dim, 1, c.codes.data() + first * c.dim / 4,
                                     c.scale_zero.data() + 2 * first, count, out);
            },
            this};
  }
};
// Codes that lose nothing.
struct Lossless {
  const std::vector<float>& from;
  int dim;
  CodeRows rows() const {
    return {[](const void* self, int64_t first, int64_t count, float* out) {
              const auto& x = *static_cast<const Lossless*>(self);
              std::copy_n(x.from.data() + first * x.dim, count * x.dim, out);
            },
            this};
  }
};

struct Probe {
  DiagnoseProblem problem;
  std::vector<float> q, k, v;
  Coded k_codes, v_codes;

  Probe(int64_t tokens, int group, int dim_k, int dim_v, float sigma = 1) {
    q = normal(tokens * group * dim_k, tokens + 1, sigma);
    k = normal(tokens * dim_k, tokens + 2);
    v = normal(tokens * dim_v, tokens + 3);
    problem = {tokens,
               0,
               group,
               dim_k,
               dim_v,
               1 / std::sqrt(static_cast<float>(dim_k)),
               64,
               256,
               0,
               nullptr,
               int64_t{group} * dim_k,
               nullptr,
               nullptr,
               {},
               {}};
    encode();
  }
  void encode() {
    k_codes.encode(problem.dim_k, k);
    v_codes.encode(problem.dim_v, v);
    problem.q = q.data();
    problem.k = k.data();
    problem.v = v.data();
    problem.k_codes = k_codes.rows();
    problem.v_codes = v_codes.rows();
  }
};

struct Outcome {
  std::vector<double> kl, error, power;
  std::vector<uint8_t> top1;
  std::vector<float> o, o_codes, o_keys, o_values;
  bool operator==(const Outcome&) const = default;
};
template <typename Kernel>
Outcome run(Kernel kernel, const DiagnoseProblem& p) {
  const int64_t rows = (p.tokens - p.first_query) * p.group;
  Outcome r;
  for (auto* x : {&r.kl, &r.error, &r.power}) x->assign(rows, -1);
  r.top1.assign(rows, 7);
  for (auto* x : {&r.o, &r.o_codes, &r.o_keys, &r.o_values}) x->assign(rows * p.dim_v, -1);
  kernel(p, DiagnoseResult{r.kl.data(), r.top1.data(), r.error.data(), r.power.data(), r.o.data(),
                           r.o_codes.data(), r.o_keys.data(), r.o_values.data()});
  return r;
}

void compare(const DiagnoseProblem& p, double relative = 1e-5) {
  SCOPED_TRACE(testing::Message() << "T " << p.tokens << " first " << p.first_query << " H " << p.group
                                  << " Dk " << p.dim_k << " Dv " << p.dim_v << " sink " << p.sink
                                  << " recent " << p.recent << " window " << p.sliding_window);
  const Outcome expected = run(diagnose_reference, p);
  each_level([&](const KernelTable& level) {
    const Outcome got = run(level.diagnose, p);
    int64_t other_top = 0;
    for (size_t i = 0; i < got.kl.size(); ++i) {
      ASSERT_NEAR(got.kl[i], expected.kl[i], 1e-6 + 1e-5 * expected.kl[i]) << i;
      ASSERT_NEAR(got.power[i], expected.power[i], 1e-7 + 1e-5 * expected.power[i]) << i;
      // Two logits rounded to float32 differ by their own rounding: relative to the power, which the report
      // divides by.
      const double root = std::sqrt(expected.error[i]);
      ASSERT_NEAR(std::sqrt(got.error[i]), root, 1e-6 + 1e-5 * root + 1e-6 * std::sqrt(expected.power[i]))
          << i;
      ASSERT_LE(got.top1[i], 1);
      other_top += got.top1[i] != expected.top1[i];
    }
    EXPECT_LE(other_top, static_cast<int64_t>(got.kl.size() / 1000));  // two scores may round to one float
    for (int64_t r = 0; r < static_cast<int64_t>(got.kl.size()); ++r) {
      const auto row = [&](const std::vector<float>& x) {
        return std::span(x).subspan(r * p.dim_v, p.dim_v);
      };
      ASSERT_LE(relative_error(row(got.o), row(expected.o)), relative) << r;
      ASSERT_LE(relative_error(row(got.o_codes), row(expected.o_codes)), relative) << r;
      ASSERT_LE(relative_error(row(got.o_keys), row(expected.o_keys)), relative) << r;
      ASSERT_LE(relative_error(row(got.o_values), row(expected.o_values)), relative) << r;
    }
  });
}

TEST(Diagnose, LosslessCodesLoseNothing) {
  Probe probe(500, 2, 64, 64);
  const Lossless k{probe.k, 64}, v{probe.v, 64};
  probe.problem.k_codes = k.rows();
  probe.problem.v_codes = v.rows();
  each_level([&](const KernelTable& level) {
    const Outcome r = run(level.diagnose, probe.problem);
    for (const double kl : r.kl) EXPECT_NEAR(kl, 0, 1e-12);
    for (const double error : r.error) EXPECT_EQ(error, 0);
    for (const int top1 : r.top1) EXPECT_EQ(top1, 1);
    EXPECT_EQ(r.o, r.o_codes);
    EXPECT_EQ(r.o, r.o_keys);
    EXPECT_EQ(r.o, r.o_values);
  });
}

TEST(Diagnose, NoHistoryNoLossAndNoDecode) {
  Probe probe(300, 2, 64, 64);
  const auto refuse = [](const void*, int64_t, int64_t, float*) { FAIL() << "nothing to decode"; };
  probe.problem.k_codes = {refuse, nullptr};
  probe.problem.v_codes = {refuse, nullptr};
  each_level([&](const KernelTable& level) {
    const Outcome r = run(level.diagnose, probe.problem);
    for (const double kl : r.kl) EXPECT_NEAR(kl, 0, 1e-12);
    EXPECT_EQ(r.o, r.o_codes);
  });
  compare(probe.problem);
}

TEST(Diagnose, TiesGoToTheLowestPosition) {
  const int64_t tokens = 400;
  Probe probe(tokens, 1, 32, 32);
  for (int64_t t = 0; t < tokens; ++t) {  // integers: exact ties everywhere
    for (int i = 0; i < 32; ++i) {
      probe.q[t * 32 + i] = static_cast<float>((t + i) % 3 - 1);
      probe.k[t * 32 + i] = static_cast<float>((t * 5 + i * i) % 4);
    }
  }
  probe.problem.scale = 0.25f;
  probe.problem.sink = 10;
  probe.problem.recent = 30;
  probe.encode();
  const Outcome expected = run(diagnose_reference, probe.problem);
  each_level(
      [&](const KernelTable& level) { EXPECT_EQ(run(level.diagnose, probe.problem).top1, expected.top1); });
}

TEST(Diagnose, Lengths) {
  for (const int64_t tokens : {1, 63, 64, 65, 300, 321, 1000}) compare(Probe(tokens, 3, 64, 64).problem);
  Probe probe(2048, 3, 64, 64, 2);
  probe.problem.first_query = 1900;
  compare(probe.problem);
}

TEST(Diagnose, DimsAndGroups) {
  for (const auto& [dim_k, dim_v] : {std::pair{32, 32},
                                     {64, 64},
                                     {80, 80},
                                     {96, 64},
                                     {128, 128},
                                     {192, 128},
                                     {256, 256},
                                     {32, 256},
                                     {256, 48}}) {
    compare(Probe(430, 2, dim_k, dim_v).problem);
  }
  for (const int group : {1, 2, 3, 5, 7, 8, 16}) compare(Probe(410, group, 40, 36).problem);
}

TEST(Diagnose, WindowsThatFallAnywhere) {
  Probe probe(270, 3, 32, 32);
  for (const int64_t sink : {0, 1, 5, 64, 70, 270}) {
    for (const int64_t recent : {0, 1, 17, 128, 269, 1000}) {
      probe.problem.sink = sink;
      probe.problem.recent = recent;
      compare(probe.problem);
    }
  }
}

TEST(Diagnose, SlidingWindow) {
  Probe probe(280, 2, 32, 32);
  for (const int64_t window : {1, 7, 64, 130, 279, 280, 1000}) {
    for (const int64_t recent : {0, 20, 150}) {
      for (const int64_t first : {0, 201}) {
        probe.problem.sink = 4;
        probe.problem.recent = recent;
        probe.problem.sliding_window = window;
        probe.problem.first_query = first;
        compare(probe.problem);
      }
    }
  }
}

// A key with a logit `boost` above the others, in the sink window or in the history, where its code is wrong.
TEST(Diagnose, AttentionSinks) {
  for (const float boost : {5.0f, 13.0f, 30.0f, 80.0f}) {
    for (const int64_t where : {0, 100}) {
      Probe probe(450, 2, 64, 64);
      for (int64_t r = 0; r < 900; ++r) probe.q[r * 64] = 4;
      for (int64_t s = 0; s < 450; ++s) probe.k[s * 64] = s == where ? boost * 2 : 0.1f;
      for (int i = 0; i < 64; ++i) probe.v[where * 64 + i] *= 0.01f;
      probe.encode();
      compare(probe.problem);
    }
  }
}

TEST(Diagnose, SoftCapAndSinkLogits) {
  const std::vector<float> logits{2, -3, 40};
  for (const float cap : {0.0f, 2.0f, 30.0f}) {
    for (const float* sinks : {static_cast<const float*>(nullptr), logits.data()}) {
      for (const int64_t window : {0, 350}) {
        Probe probe(450, 3, 64, 48);
        probe.problem.logit_cap = cap;
        probe.problem.sink_logits = sinks;
        probe.problem.sliding_window = window;
        compare(probe.problem, 2e-5);
      }
    }
  }
}
// All that a softmax gives to a sink is lost to no key.
TEST(Diagnose, ASinkAboveEverythingHidesTheLoss) {
  Probe probe(450, 1, 64, 64);
  const float logit = 1000;
  probe.problem.sink_logits = &logit;
  each_level([&](const KernelTable& level) {
    const Outcome r = run(level.diagnose, probe.problem);
    for (const double kl : r.kl) ASSERT_EQ(kl, 0);
    for (const float o : r.o) ASSERT_EQ(o, 0);
    EXPECT_GT(r.error[449], 0);
  });
}

// Logits of tens from one channel cost float32 digits in all of them.
TEST(Diagnose, OutlierChannels) {
  Probe probe(600, 2, 64, 64);
  for (int64_t s = 0; s < 600; ++s) {
    probe.k[s * 64 + 5] = 30 + probe.k[s * 64 + 5];
    probe.v[s * 64 + 9] *= 100;
  }
  probe.encode();
  compare(probe.problem, 4e-5);
}

TEST(Diagnose, ThreadsDoNotMatter) {
  const Probe probe(700, 3, 64, 64);
  const int threads = omp_get_max_threads();
  each_level([&](const KernelTable& level) {
    omp_set_num_threads(1);
    const Outcome one = run(level.diagnose, probe.problem);
    for (const int n : {2, 3, 8}) {
      omp_set_num_threads(n);
      EXPECT_TRUE(run(level.diagnose, probe.problem) == one) << n;
    }
  });
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace oscar::test
