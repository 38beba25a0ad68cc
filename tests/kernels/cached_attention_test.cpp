#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cached_attention.h"
#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Decoded rows, whatever they are; notes which were asked for.
struct Rows {
  int dim;
  std::vector<float> values;
  mutable std::vector<int> asked;
  Rows(int d, std::vector<float> x) : dim(d), values(std::move(x)), asked(values.size() / d) {}
  CodeRows view() const {
    return {[](const void* self, int64_t first, int64_t count, float* out) {
              const auto& x = *static_cast<const Rows*>(self);
              for (int64_t s = first; s < first + count; ++s) ++x.asked[s];
              std::copy_n(x.values.data() + first * x.dim, count * x.dim, out);
            },
            this};
  }
};

// One KV head of a random sequence whose codes have nothing to do with its exact rows.
struct Sequence {
  CachedAttentionProblem problem;
  std::vector<float> q, k, v;
  Rows k_codes, v_codes;

  Sequence(int64_t tokens, int group, int dim_k, int dim_v, int64_t sink = 64, int64_t recent = 100,
           int64_t window = 0)
      : q(normal(tokens * group * dim_k, tokens + group)),
        k(normal(tokens * dim_k, tokens + dim_k)),
        v(normal(tokens * dim_v, tokens + dim_v + 1)),
        k_codes(dim_k, normal(tokens * dim_k, tokens + dim_k + 2)),
        v_codes(dim_v, normal(tokens * dim_v, tokens + dim_v + 3)) {
    AttentionProblem& p = problem.exact;
    p = {};
    p.tokens = p.lse_stride = tokens;
    p.group = group;
    p.dim_k = dim_k;
    p.dim_v = dim_v;
    p.scale = 1 / std::sqrt(static_cast<float>(dim_k));
    p.sliding_window = window;
    p.q_stride = int64_t{group} * dim_k;
    p.k_stride = dim_k;
    p.v_stride = dim_v;
    p.o_stride = int64_t{group} * dim_v;
    problem.sink = sink;
    problem.recent = recent;
  }
  const CachedAttentionProblem& view() {
    problem.exact.q = q.data();
    problem.exact.k = k.data();
    problem.exact.v = v.data();
    problem.k_codes = k_codes.view();
    problem.v_codes = v_codes.view();
    return problem;
  }
};

struct Output {
  std::vector<float> o, lse;
  bool operator==(const Output&) const = default;
};
template <typename Kernel, typename Problem>
Output run(Kernel kernel, const Problem& problem, const AttentionProblem& p) {
  Output out{std::vector<float>(p.tokens * p.o_stride, kNaN),
             std::vector<float>(p.group * p.lse_stride, kNaN)};
  kernel(problem, out.o.data(), out.lse.data());
  return out;
}

// Each row by itself: ||o - expected|| / ||expected||.
void compare(const CachedAttentionProblem& problem, double tolerance = 1e-5) {
  const AttentionProblem& p = problem.exact;
  SCOPED_TRACE(testing::Message() << "T " << p.tokens << " H " << p.group << " Dk " << p.dim_k << " Dv "
                                  << p.dim_v << " sink " << problem.sink << " recent " << problem.recent
                                  << " window " << p.sliding_window);
  const Output expected = run(cached_attention_reference, problem, p);
  each_level([&](const KernelTable& level) {
    const Output got = run(level.cached_attention, problem, p);
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
void compare_to_reference(Sequence sequence) {
  compare(sequence.view());
}

TEST(CachedAttention, LosslessCodesGiveCausalAttentionToTheBit) {
  for (const int64_t window : {0, 150}) {
    for (const auto& [sink, recent] : {std::pair{0, 0}, {0, 1}, {5, 70}, {64, 128}, {1, 399}}) {
      Sequence sequence(400, 3, 64, 48, sink, recent, window);
      sequence.k_codes.values = sequence.k;
      sequence.v_codes.values = sequence.v;
      const auto& problem = sequence.view();
      each_level([&](const KernelTable& level) {
        EXPECT_EQ(run(level.cached_attention, problem, problem.exact),
                  run(level.causal_attention, problem.exact, problem.exact))
            << sink << " " << recent;
      });
    }
  }
}

TEST(CachedAttention, NoHistoryNoDecode) {
  const auto refuse = [](const void*, int64_t, int64_t, float*) { FAIL() << "nothing to decode"; };
  for (const auto& [sink, recent, window] :
       {std::tuple{0, 300, 0}, {300, 0, 0}, {100, 200, 0}, {4, 50, 50}, {1000000, 2, 0}, {2, 1000000, 7}}) {
    Sequence sequence(300, 2, 32, 32, sink, recent, window);
    auto problem = sequence.view();
    problem.k_codes = problem.v_codes = {refuse, nullptr};
    each_level([&](const KernelTable& level) {
      EXPECT_EQ(run(level.cached_attention, problem, problem.exact),
                run(level.causal_attention, problem.exact, problem.exact));
    });
  }
}

TEST(CachedAttention, DecodesTheHistoryOnceAndNothingElse) {
  for (const auto& [sink, recent] : {std::pair{0, 0}, {3, 17}, {64, 128}, {130, 70}}) {
    Sequence sequence(500, 3, 32, 40, sink, recent);
    for (auto* rows : {&sequence.k_codes, &sequence.v_codes}) {
      for (int64_t s = 0; s < 500; ++s) {
        if (s < sink || s >= 500 - recent) std::fill_n(rows->values.begin() + s * rows->dim, rows->dim, kNaN);
      }
    }
    compare(sequence.view());
    each_level([&](const KernelTable& level) {
      for (auto* rows : {&sequence.k_codes, &sequence.v_codes}) std::ranges::fill(rows->asked, 0);
      run(level.cached_attention, sequence.view(), sequence.problem.exact);
      for (const auto* rows : {&sequence.k_codes, &sequence.v_codes}) {
        for (int64_t s = 0; s < 500; ++s) ASSERT_EQ(rows->asked[s], s >= sink && s < 500 - recent) << s;
      }
    });
  }
}

TEST(CachedAttention, Lengths) {
  for (const int64_t tokens : {1, 2, 63, 64, 65, 165, 255, 256, 257, 300, 1000})
    compare_to_reference({tokens, 3, 64, 64});
}

TEST(CachedAttention, DimsAndGroups) {
  for (const auto& [dim_k, dim_v] : {std::pair{32, 32},
                                     {64, 64},
                                     {80, 80},
                                     {96, 64},
                                     {128, 128},
                                     {64, 128},
                                     {30, 9},
                                     {1, 64},
                                     {256, 256}}) {
    compare_to_reference({300, 2, dim_k, dim_v, 20, 60});
  }
  for (const int group : {1, 2, 4, 5, 6, 7, 8, 13, 16}) compare_to_reference({300, group, 32, 32, 20, 60});
}

TEST(CachedAttention, WindowsThatFallAnywhere) {
  for (const int64_t sink : {0, 1, 5, 16, 64, 70, 270}) {
    for (const int64_t recent : {0, 1, 2, 16, 17, 128, 255, 269, 1000}) {
      for (const int group : {1, 3}) compare_to_reference({270, group, 32, 32, sink, recent});
    }
  }
}

TEST(CachedAttention, SlidingWindow) {
  for (const int64_t window : {1, 7, 64, 130, 279, 280, 1000}) {
    for (const int64_t recent : {0, 20, 150}) {
      for (const int group : {1, 4}) compare_to_reference({280, group, 32, 32, 4, recent, window});
    }
  }
}

// One key far above the others, as a code only or as an exact row only: the other must not raise the shift of
// a row, or its sum is lost below it.
TEST(CachedAttention, SinksThatTheCodesHaveAndTheRowsHaveNot) {
  for (const bool coded : {false, true}) {
    for (const int64_t where : {0, 3, 40, 200, 301}) {
      for (const int64_t recent : {0, 40}) {
        Sequence sequence(450, 3, 64, 64, 2, recent);
        for (int64_t r = 0; r < 450 * 3; ++r) sequence.q[r * 64] = 4;
        for (int64_t s = 0; s < 450; ++s) sequence.k[s * 64] = sequence.k_codes.values[s * 64] = 0;
        (coded ? sequence.k_codes.values : sequence.k)[where * 64] = 240;  // a logit of 120
        compare(sequence.view(), 1.5e-4);
      }
    }
  }
}

TEST(CachedAttention, SoftCapAndSinkLogits) {
  const std::vector<float> logits{2, -3, 5};
  for (const float cap : {0.0f, 2.0f, 30.0f}) {
    for (const float* sinks : {static_cast<const float*>(nullptr), logits.data()}) {
      Sequence sequence(400, 3, 64, 48, 20, 60, 300);
      sequence.problem.exact.logit_cap = cap;
      sequence.problem.exact.sink_logits = sinks;
      compare(sequence.view());
    }
  }
}

TEST(CachedAttention, StridesAndNoLse) {
  Sequence sequence(350, 2, 32, 48);
  const auto tight = sequence.view();
  auto problem = tight;
  auto& p = problem.exact;
  p.q_stride = 71;
  p.k_stride = 160;
  p.v_stride = 49;
  p.o_stride = 200;
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
    const Output expected = run(level.cached_attention, tight, tight.exact);
    std::vector<float> o(p.tokens * p.o_stride, kNaN);
    level.cached_attention(problem, o.data(), nullptr);
    for (int64_t t = 0; t < p.tokens; ++t) {
      for (int i = 0; i < 96; ++i) ASSERT_EQ(o[t * 200 + i], expected.o[t * 96 + i]);
      EXPECT_TRUE(std::isnan(o[t * 200 + 96]));  // what lies between the rows is left alone
    }
  });
}

// A query neither sees what comes later nor depends on who shares its block.
TEST(CachedAttention, APrefixAndAHeadOnTheirOwnGiveTheSameNumbers) {
  Sequence sequence(500, 4, 64, 64, 10, 90);
  each_level([&](const KernelTable& level) {
    const auto& problem = sequence.view();
    const Output whole = run(level.cached_attention, problem, problem.exact);
    auto part = problem;
    part.exact.tokens = part.exact.lse_stride = 203;
    Output got = run(level.cached_attention, part, part.exact);
    EXPECT_TRUE(std::ranges::equal(got.o, std::span(whole.o).first(203 * 256)));
    part = problem;
    part.exact.group = 1;
    part.exact.q += 2 * 64;
    got = run(level.cached_attention, part, part.exact);
    for (int64_t t = 0; t < 500; ++t) {
      EXPECT_EQ(got.lse[t], whole.lse[2 * 500 + t]);
      for (int i = 0; i < 64; ++i) ASSERT_EQ(got.o[t * 256 + i], whole.o[t * 256 + 2 * 64 + i]);
    }
  });
}

TEST(CachedAttention, NoTokensAndBadShapes) {
  Sequence sequence(5, 1, 32, 32, 0, 0);
  auto problem = sequence.view();
  problem.exact.tokens = 0;
  cached_attention(problem, nullptr, nullptr);
  std::vector<float> o(5 * 32);
  problem = sequence.view();
  problem.exact.group = 0;
  EXPECT_THROW(cached_attention(problem, o.data(), nullptr), std::invalid_argument);
  problem = sequence.view();
  problem.sink = -1;
  EXPECT_THROW(cached_attention(problem, o.data(), nullptr), std::invalid_argument);
  problem = sequence.view();
  problem.recent = -1;
  EXPECT_THROW(cached_attention(problem, o.data(), nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace oscar::test
