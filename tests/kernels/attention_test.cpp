#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

// One KV head of a random sequence.
struct Sequence {
  AttentionProblem problem;
  std::vector<float> q, k, v;

  Sequence(int64_t tokens, int group, int dim_k, int dim_v, int64_t window = 0) {
    q = normal(tokens * group * dim_k, tokens + group);
    k = normal(tokens * dim_k, tokens + dim_k);
    v = normal(tokens * dim_v, tokens + dim_v + 1);
    problem = {tokens,
               group,
               dim_k,
               dim_v,
               1 / std::sqrt(static_cast<float>(dim_k)),
               window,
               q.data(),
               0,
               k.data(),
               dim_k,
               v.data(),
               dim_v,
               int64_t{group} * dim_v,
               tokens};
    problem.q_stride = int64_t{group} * dim_k;
  }
  // The logits of these keys are `boost`, give or take a little.
  void sinks(const std::vector<int64_t>& keys, float boost) {
    const auto& p = problem;
    for (int64_t r = 0; r < p.tokens * p.group; ++r) q[r * p.dim_k] = 4;
    for (int64_t s = 0; s < p.tokens; ++s) k[s * p.dim_k] = 0;
    for (const int64_t s : keys) k[s * p.dim_k] = boost / (4 * p.scale);
  }
};

struct Output {
  std::vector<float> o, lse;
  bool operator==(const Output&) const = default;
};
template <typename Kernel>
Output run(Kernel kernel, const AttentionProblem& p) {
  constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();
  Output out{std::vector<float>(p.tokens * p.o_stride, kUnset),
             std::vector<float>(p.group * p.lse_stride, kUnset)};
  kernel(p, out.o.data(), out.lse.data());
  return out;
}

// Each row by itself: ||o - expected|| / ||expected||.
void compare(const AttentionProblem& p, double tolerance = 1e-5) {
  SCOPED_TRACE(testing::Message() << "T " << p.tokens << " H " << p.group << " Dk " << p.dim_k << " Dv "
                                  << p.dim_v << " window " << p.sliding_window);
  const Output expected = run(causal_attention_reference, p);
  each_level([&](const KernelTable& level) {
    const Output got = run(level.causal_attention, p);
    for (int64_t t = 0; t < p.tokens; ++t) {
      for (int64_t j = 0; j < p.group; ++j) {
        const int64_t at = t * p.o_stride + j * p.dim_v;
        const auto row = [&](const Output& x) { return std::span(x.o).subspan(at, p.dim_v); };
        ASSERT_LE(relative_error(row(got), row(expected)), tolerance) << "o, query " << t << " head " << j;
        ASSERT_NEAR(got.lse[j * p.lse_stride + t], expected.lse[j * p.lse_stride + t], tolerance)
            << "lse, query " << t << " head " << j;
      }
    }
  });
}

TEST(Attention, EqualKeysGiveTheMeanOfTheValues) {
  const int64_t tokens = 600;
  const std::vector<float> q(tokens * 32, 1), k(tokens * 32, 0);
  std::vector<float> v(tokens * 8);
  for (int64_t s = 0; s < tokens; ++s) std::fill_n(v.begin() + s * 8, 8, static_cast<float>(s));
  each_level([&](const KernelTable& level) {
    for (const int64_t window : {0, 1, 100}) {
      const Output got = run(level.causal_attention, {tokens, 1, 32, 8, 1, window, q.data(), 32, k.data(), 32,
                                                      v.data(), 8, 8, tokens});
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t seen = window > 0 ? std::min(window, t + 1) : t + 1;
        ASSERT_NEAR(got.lse[t], std::log(static_cast<double>(seen)), 1e-6);
        const double mean = t - (seen - 1) / 2.0;
        for (int i = 0; i < 8; ++i) ASSERT_NEAR(got.o[t * 8 + i], mean, 1e-6 * mean) << t;
      }
    }
  });
}

TEST(Attention, Lengths) {
  for (const int64_t tokens : {1, 2, 63, 64, 65, 255, 256, 257, 300, 1000}) {
    compare(Sequence(tokens, 3, 64, 64).problem);
  }
}

TEST(Attention, DimsAndGroups) {
  for (const int dim : {32, 40, 64, 80, 96, 128, 256}) compare(Sequence(300, 2, dim, dim).problem);
  for (int group = 1; group <= 8; ++group) compare(Sequence(300, group, 32, 32).problem);
  compare(Sequence(300, 16, 32, 32).problem);
  compare(Sequence(300, 3, 96, 64).problem);
  compare(Sequence(300, 3, 64, 128).problem);
  compare(Sequence(300, 2, 30, 9).problem);
  compare(Sequence(300, 2, 1, 64).problem);
}

TEST(Attention, SlidingWindow) {
  for (const int64_t window : {1, 2, 7, 16, 64, 256, 300, 599, 600, 5000}) {
    for (const int group : {1, 3, 8}) compare(Sequence(600, group, 32, 32, window).problem);
  }
}

// A key far above the others anywhere: on the first panel, where the shift begins, and where it must be
// raised. A float32 logit of 80 is good to about 5e-5.
TEST(Attention, Sinks) {
  for (const float boost : {5.0f, 13.0f, 30.0f, 39.0f, 41.0f, 80.0f}) {
    for (const auto& keys : std::vector<std::vector<int64_t>>{{0}, {3, 100}, {37}, {301}, {255, 256, 599}}) {
      for (const int64_t window : {0, 200}) {
        Sequence sequence(600, 3, 64, 64, window);
        sequence.sinks(keys, boost);
        compare(sequence.problem, 1e-5 + 1e-6 * boost);
      }
    }
  }
}

// Each key is above all before it by 50, then by 30 below all before it: every shift is raised, or none.
TEST(Attention, LogitsThatRiseAndFall) {
  for (const float step : {50.0f, -30.0f}) {
    Sequence sequence(700, 2, 32, 32);
    std::ranges::fill(sequence.q, 1.0f);
    for (int64_t s = 0; s < 700; ++s) {
      std::fill_n(sequence.k.begin() + s * 32, 32, 0.0f);
      sequence.k[s * 32] = step * static_cast<float>(s / 100);
    }
    sequence.problem.scale = 1;
    compare(sequence.problem);
  }
}

TEST(Attention, StridesOfInterleavedHeads) {
  const Sequence sequence(350, 2, 32, 48);
  auto p = sequence.problem;
  p.q_stride = 3 * 64 + 7;
  p.k_stride = 5 * 32;
  p.v_stride = 49;
  p.o_stride = 200;
  p.lse_stride = 400;
  std::vector<float> q(p.tokens * p.q_stride), k(p.tokens * p.k_stride), v(p.tokens * p.v_stride);
  for (int64_t t = 0; t < p.tokens; ++t) {
    std::copy_n(sequence.q.data() + t * 64, 64, q.data() + t * p.q_stride);
    std::copy_n(sequence.k.data() + t * 32, 32, k.data() + t * p.k_stride);
    std::copy_n(sequence.v.data() + t * 48, 48, v.data() + t * p.v_stride);
  }
  p.q = q.data();
  p.k = k.data();
  p.v = v.data();
  each_level([&](const KernelTable& level) {
    const Output a = run(level.causal_attention, sequence.problem), b = run(level.causal_attention, p);
    for (int64_t t = 0; t < p.tokens; ++t) {
      for (int i = 0; i < 96; ++i) ASSERT_EQ(a.o[t * 96 + i], b.o[t * 200 + i]);
      EXPECT_TRUE(std::isnan(b.o[t * 200 + 96]));  // what lies between the rows is left alone
      for (int j = 0; j < 2; ++j) ASSERT_EQ(a.lse[j * 350 + t], b.lse[j * 400 + t]);
    }
  });
}

// A query neither sees what comes later nor depends on who shares its block.
TEST(Attention, APrefixAndAHeadOnTheirOwnGiveTheSameNumbers) {
  Sequence sequence(500, 4, 64, 64);
  sequence.sinks({130}, 60);
  each_level([&](const KernelTable& level) {
    const Output whole = run(level.causal_attention, sequence.problem);
    auto part = sequence.problem;
    part.tokens = part.lse_stride = 203;
    Output got = run(level.causal_attention, part);
    EXPECT_TRUE(std::ranges::equal(got.o, std::span(whole.o).first(203 * 256)));
    part = sequence.problem;
    part.group = 1;
    part.q += 2 * 64;
    got = run(level.causal_attention, part);
    for (int64_t t = 0; t < 500; ++t) {
      EXPECT_EQ(got.lse[t], whole.lse[2 * 500 + t]);
      for (int i = 0; i < 64; ++i) ASSERT_EQ(got.o[t * 256 + i], whole.o[t * 256 + 2 * 64 + i]);
    }
  });
}

// From logits that the cap hardly touches to logits that it makes all alike.
TEST(Attention, SoftCap) {
  for (const float cap : {1.0f, 5.0f, 50.0f}) {
    for (const float spread : {0.1f, 4.0f, 100.0f}) {
      for (const int64_t window : {0, 200}) {
        Sequence sequence(600, 3, 64, 48, window);
        for (float& x : sequence.q) x *= spread;
        sequence.problem.logit_cap = cap;
        compare(sequence.problem, 1e-5 + 1e-6 * std::min(cap, 4 * spread));
      }
    }
  }
}

TEST(Attention, SinkLogits) {
  for (const float logit : {-1000.0f, -5.0f, 3.0f, 40.0f, 2000.0f}) {
    const std::vector<float> logits{logit, 0, 1};
    for (const float cap : {0.0f, 5.0f}) {
      Sequence sequence(300, 3, 64, 48, 100);
      sequence.problem.sink_logits = logits.data();
      sequence.problem.logit_cap = cap;
      if (logit < 100) compare(sequence.problem);
      each_level([&](const KernelTable& level) {
        auto p = sequence.problem;
        const Output with = run(level.causal_attention, p);
        p.sink_logits = nullptr;
        const Output without = run(level.causal_attention, p);
        for (int64_t t = 0; t < p.tokens; ++t) {  // head 0: nothing of the sink, or nothing but the sink
          if (logit < -100) {
            ASSERT_EQ(with.lse[t], without.lse[t]);
          }
          if (logit > 100) {
            ASSERT_EQ(with.lse[t], logit);
          }
          for (int i = 0; i < p.dim_v && std::abs(logit) > 100; ++i)
            ASSERT_EQ(with.o[t * p.o_stride + i], logit < 0 ? without.o[t * p.o_stride + i] : 0);
        }
      });
    }
  }
}

TEST(Attention, NoTokensAndBadShapes) {
  Sequence sequence(5, 1, 32, 32);
  Output out = run(causal_attention_reference, sequence.problem);
  auto p = sequence.problem;
  p.tokens = 0;
  causal_attention(p, nullptr, nullptr);
  for (const auto& [group, dim] : {std::pair{0, 32}, {1, 0}}) {
    p = sequence.problem;
    p.group = group;
    p.dim_v = dim;
    EXPECT_THROW(causal_attention(p, out.o.data(), out.lse.data()), std::invalid_argument);
  }
}

}  // namespace
}  // namespace oscar::test
