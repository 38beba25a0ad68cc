#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

// One KV head of a random sequence; lse is what an attention in double would return.
struct Sequence {
  ScoreStatsProblem problem;
  std::vector<float> q, k, lse;
  std::vector<int32_t> queries;

  // Keys [0, sinks) and [outlier, outlier + sinks) get `boost` on every logit.
  Sequence(int64_t tokens, int group, int dim, int64_t window = 0, float boost = 0, int64_t outlier = -1) {
    q = normal(tokens * group * dim, tokens + group);
    k = normal(tokens * dim, tokens + dim);
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    if (boost > 0) {
      for (int64_t r = 0; r < tokens * group; ++r) q[r * dim] = 4;
      for (int64_t s = 0; s < tokens; ++s) k[s * dim] = s == 0 || s == outlier ? boost / (4 * scale) : 0;
    }
    problem = {tokens,  group, dim,     scale,  64,      256,   window, nullptr, int64_t{group} * dim,
               nullptr, dim,   nullptr, tokens, nullptr, tokens};
    lse.resize(group * tokens);
    for (int j = 0; j < group; ++j) {
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<double> l;
        for (int64_t s = window > 0 ? std::max<int64_t>(0, t - window + 1) : 0; s <= t; ++s) {
          double dot = 0;
          for (int i = 0; i < dim; ++i) dot += double(q[(t * group + j) * dim + i]) * k[s * dim + i];
          l.push_back(dot * scale);
        }
        const double top = *std::ranges::max_element(l);
        double sum = 0;
        for (const double x : l) sum += std::exp(x - top);
        lse[j * tokens + t] = static_cast<float>(top + std::log(sum));
      }
    }
    problem.q = q.data();
    problem.k = k.data();
    problem.lse = lse.data();
  }
  void sample(int every) {
    queries.clear();
    for (int64_t t = 0; t < problem.tokens; ++t) {
      if ((t * 2654435761u >> 8) % every == 0) queries.push_back(static_cast<int32_t>(t));
    }
    problem.queries = queries.data();
    problem.n_queries = static_cast<int64_t>(queries.size());
  }
};

struct Sums {
  std::vector<float> mass, sink_mass, entropy;
  std::vector<double> u, w;
};
template <typename Kernel>
Sums run(Kernel kernel, const ScoreStatsProblem& p) {
  const int64_t rows = p.group * (p.queries ? p.n_queries : p.tokens);
  Sums s{std::vector<float>(rows, -1), std::vector<float>(rows, -1), std::vector<float>(rows, -1),
         std::vector<double>(p.tokens), std::vector<double>(p.tokens)};
  kernel(p, ScoreStatsResult{s.mass.data(), s.sink_mass.data(), s.entropy.data(), s.u.data(), s.w.data()});
  return s;
}

template <typename T>
void expect_close(const std::vector<T>& a, const std::vector<T>& b, double relative, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(double(a[i]) - b[i]) / std::max(std::abs(double(b[i])), 1e-30);
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
  }
  if (a.empty()) return;
  EXPECT_LE(worst, relative) << what << "[" << where << "] " << a[where] << " expected " << b[where];
}

void compare(const ScoreStatsProblem& problem, double relative = 1e-5) {
  SCOPED_TRACE(testing::Message() << "T " << problem.tokens << " H " << problem.group << " D " << problem.dim
                                  << " sink " << problem.sink << " recent " << problem.recent << " window "
                                  << problem.sliding_window << " queries " << problem.n_queries);
  const Sums expected = run(score_stats_reference, problem);
  each_level([&](const KernelTable& level) {
    const Sums got = run(level.score_stats, problem);
    expect_close(got.mass, expected.mass, relative, "mass");
    expect_close(got.sink_mass, expected.sink_mass, relative, "sink_mass");
    expect_close(got.u, expected.u, relative, "u");
    expect_close(got.w, expected.w, relative, "w");
    ASSERT_EQ(got.entropy.size(), expected.entropy.size());
    for (size_t i = 0; i < got.entropy.size();
         ++i) {  // the entropy of one certain key is the rounding of lse
      ASSERT_NEAR(got.entropy[i], expected.entropy[i], relative * (1 + expected.entropy[i]))
          << "entropy " << i;
    }
  });
}

TEST(ScoreStats, EqualKeysGiveUniformProbabilities) {
  const int64_t tokens = 400;
  const int dim = 32;
  std::vector<float> q(tokens * dim, 1), k(tokens * dim, 0), lse(tokens);
  for (int64_t t = 0; t < tokens; ++t) lse[t] = std::log(static_cast<float>(t + 1));
  const ScoreStatsProblem p{tokens, 1,        dim, 1,          64,     256,     0,     q.data(),
                            dim,    k.data(), dim, lse.data(), tokens, nullptr, tokens};
  each_level([&](const KernelTable& level) {
    const Sums s = run(level.score_stats, p);
    EXPECT_EQ(s.mass[319], 0);
    EXPECT_NEAR(s.mass[320], 1 / 321., 1e-7);
    EXPECT_NEAR(s.mass[399], 80 / 400., 1e-6);
    EXPECT_NEAR(s.sink_mass[399], 64 / 400., 1e-6);
    EXPECT_NEAR(s.sink_mass[10], 1, 1e-6);
    EXPECT_NEAR(s.entropy[399], std::log(400.), 1e-5);
    EXPECT_EQ(s.u[63], 0);
    EXPECT_EQ(s.u[144], 0);
    EXPECT_NEAR(s.u[143], 1 / 400., 1e-8);
    EXPECT_NEAR(s.w[143], 1 / 160000., 1e-10);
  });
}

TEST(ScoreStats, Lengths) {
  for (const int64_t tokens : {1, 63, 64, 65, 300, 321, 1000}) compare(Sequence(tokens, 3, 64).problem);
  compare(Sequence(2048, 1, 64).problem);
}

TEST(ScoreStats, DimsAndGroups) {
  for (const int dim : {32, 64, 80, 96, 128, 192, 256}) compare(Sequence(450, 2, dim).problem);
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 16}) compare(Sequence(410, group, 40).problem);
}

TEST(ScoreStats, WindowsThatFallAnywhere) {
  Sequence sequence(500, 3, 32);
  for (const int64_t sink : {0, 1, 5, 64, 70, 500, 1000}) {
    for (const int64_t recent : {0, 1, 3, 17, 256, 499, 500, 2000}) {
      sequence.problem.sink = sink;
      sequence.problem.recent = recent;
      compare(sequence.problem);
    }
  }
}

TEST(ScoreStats, SlidingWindow) {
  for (const int64_t window : {1, 7, 64, 300, 399, 400, 1000}) {
    Sequence sequence(400, 2, 32, window);
    for (const int64_t recent : {0, 20, 256}) {
      sequence.problem.sink = 4;
      sequence.problem.recent = recent;
      compare(sequence.problem);
    }
  }
}

TEST(ScoreStats, SampledQueries) {
  Sequence sequence(700, 3, 64);
  for (const int every : {1, 2, 4, 50}) {
    sequence.sample(every);
    compare(sequence.problem);
  }
  sequence.problem.n_queries = 0;
  compare(sequence.problem);
}

TEST(ScoreStats, HalvesOfTheQueriesMerge) {
  Sequence sequence(600, 2, 64);
  sequence.sample(2);
  each_level([&](const KernelTable& level) {
    const Sums whole = run(level.score_stats, sequence.problem);
    auto half = sequence.problem;
    half.n_queries = sequence.problem.n_queries / 2;
    Sums merged = run(level.score_stats, half);
    half.queries += half.n_queries;
    half.n_queries = sequence.problem.n_queries - half.n_queries;
    Sums rest = run(level.score_stats, half);
    for (size_t s = 0; s < merged.u.size(); ++s) {
      EXPECT_NEAR(merged.u[s] + rest.u[s], whole.u[s], 1e-6 * whole.u[s]);
      EXPECT_NEAR(merged.w[s] + rest.w[s], whole.w[s], 1e-6 * whole.w[s]);
    }
  });
}

TEST(ScoreStats, UAndWAreAddedTo) {
  const Sequence sequence(400, 2, 32);
  each_level([&](const KernelTable& level) {
    Sums s = run(level.score_stats, sequence.problem);
    const auto u = s.u, w = s.w;
    level.score_stats(sequence.problem,
                      {s.mass.data(), s.sink_mass.data(), s.entropy.data(), s.u.data(), s.w.data()});
    for (size_t i = 0; i < u.size(); ++i) {
      EXPECT_EQ(s.u[i], 2 * u[i]);
      EXPECT_EQ(s.w[i], 2 * w[i]);
    }
  });
}

TEST(ScoreStats, StridesOfInterleavedHeads) {
  const Sequence sequence(350, 2, 32);
  auto problem = sequence.problem;
  const int64_t stride = 3 * 2 * 32 + 7, k_stride = 5 * 32, lse_stride = 400;
  std::vector<float> q(problem.tokens * stride), k(problem.tokens * k_stride), lse(2 * lse_stride);
  for (int64_t t = 0; t < problem.tokens; ++t) {
    std::copy_n(problem.q + t * problem.q_stride, 64, q.data() + t * stride);
    std::copy_n(problem.k + t * problem.k_stride, 32, k.data() + t * k_stride);
  }
  for (int j = 0; j < 2; ++j)
    std::copy_n(problem.lse + j * problem.lse_stride, 350, lse.data() + j * lse_stride);
  problem.q = q.data();
  problem.k = k.data();
  problem.lse = lse.data();
  problem.q_stride = stride;
  problem.k_stride = k_stride;
  problem.lse_stride = lse_stride;
  each_level([&](const KernelTable& level) {
    const Sums a = run(level.score_stats, sequence.problem), b = run(level.score_stats, problem);
    EXPECT_EQ(a.mass, b.mass);
    EXPECT_EQ(a.u, b.u);
  });
}

// One key takes nearly everything: at e^13 and e^30 the others still count in float32, at e^80 they are about
// 1e-35. A float32 dot product of 80 is good to about 5e-5, and so is each probability.
TEST(ScoreStats, AttentionSinks) {
  for (const float boost : {5.0f, 13.0f, 30.0f, 80.0f}) {
    compare(Sequence(450, 2, 64, 0, boost).problem, 1e-5 + 1e-6 * boost);       // in the sink window
    compare(Sequence(450, 2, 64, 0, boost, 100).problem, 1e-5 + 1e-6 * boost);  // and in the history
  }
}

TEST(ScoreStats, RefusesQueriesOutOfOrderOrRange) {
  Sequence sequence(64, 1, 32);
  Sums s = run(score_stats_reference, sequence.problem);
  const ScoreStatsResult result{s.mass.data(), s.sink_mass.data(), s.entropy.data(), s.u.data(), s.w.data()};
  for (const auto& queries : {std::vector<int32_t>{3, 2}, {64}, {-1}}) {
    sequence.problem.queries = queries.data();
    sequence.problem.n_queries = static_cast<int64_t>(queries.size());
    EXPECT_THROW(score_stats(sequence.problem, result), std::invalid_argument);
  }
}

}  // namespace
}  // namespace oscar::test
