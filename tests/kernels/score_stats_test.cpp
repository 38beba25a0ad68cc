#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/each_level.h"

namespace oscar::test {
namespace {

// One KV head of a random sequence; lse and o are what an attention in double would return.
struct Sequence {
  ScoreStatsProblem problem;
  std::vector<float> q, k, lse, v, o, metric;
  std::vector<int32_t> queries;

  float cap = 0;

  // Keys [0, sinks) and [outlier, outlier + sinks) get `boost` on every logit. dim_v 0: that of the keys.
  Sequence(int64_t tokens, int group, int dim, int64_t window = 0, float boost = 0, int64_t outlier = -1,
           int dim_v = 0, float logit_cap = 0, float sink_logit = -INFINITY)
      : cap(logit_cap) {
    if (dim_v == 0) dim_v = dim;
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
    v = normal(tokens * dim_v, tokens + 2 * dim);
    for (int64_t i = 0; i < tokens * dim_v; ++i)
      v[i] += 2 * std::sin(static_cast<float>(i % dim_v));  // a mean
    o.resize(tokens * group * dim_v);
    for (int j = 0; j < group; ++j) {
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<double> l;
        for (int64_t s = window > 0 ? std::max<int64_t>(0, t - window + 1) : 0; s <= t; ++s) {
          double dot = 0;
          for (int i = 0; i < dim; ++i) dot += double(q[(t * group + j) * dim + i]) * k[s * dim + i];
          l.push_back(cap > 0 ? cap * std::tanh(dot * scale / cap) : dot * scale);
        }
        const double top = std::max<double>(*std::ranges::max_element(l), sink_logit);
        double sum = std::exp(sink_logit - top);
        for (const double x : l) sum += std::exp(x - top);
        lse[j * tokens + t] = static_cast<float>(top + std::log(sum));
        const int64_t first = t + 1 - static_cast<int64_t>(l.size());
        for (int i = 0; i < dim_v; ++i) {
          double output = 0;
          for (int64_t s = first; s <= t; ++s)
            output += std::exp(l[s - first] - top) / sum * v[s * dim_v + i];
          o[(t * group + j) * dim_v + i] = static_cast<float>(output);
        }
      }
    }
    set_metric(dim_v);
    problem.v = v.data();
    problem.v_stride = dim_v;
    problem.o = o.data();
    problem.o_stride = int64_t{group} * dim_v;
    problem.metric = metric.data();
    problem.dim_v = dim_v;
    problem.q = q.data();
    problem.k = k.data();
    problem.lse = lse.data();
    problem.logit_cap = cap;
  }
  // Positive definite, of another scale in every head.
  void set_metric(int dim) {
    for (int j = 0; j < problem.group; ++j) {
      const std::vector<float> w = normal(int64_t{dim} * dim, 77 + j, 0.1f * static_cast<float>(j + 1));
      for (int a = 0; a < dim; ++a) {
        for (int b = 0; b < dim; ++b) {
          double sum = 0;
          for (int r = 0; r < dim; ++r) sum += double(w[r * dim + a]) * w[r * dim + b];
          metric.push_back(static_cast<float>(sum));
        }
      }
    }
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
  std::vector<float> mass, sink_mass, entropy, a;
  std::vector<double> u, w, x;
  ScoreStatsResult result() {
    return {mass.data(), sink_mass.data(), entropy.data(), u.data(), w.data(), a.data(), x.data()};
  }
};
template <typename Kernel>
Sums run(Kernel kernel, const ScoreStatsProblem& p) {
  const int64_t rows = p.group * (p.queries ? p.n_queries : p.tokens);
  const std::vector<float> unset(rows, -1);
  const std::vector<double> zeros(p.tokens);
  Sums s{unset, unset, unset, unset, zeros, zeros, zeros};
  kernel(p, s.result());
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

// Mean square of the values about their mean, in the widest metric.
double value_power(const ScoreStatsProblem& p) {
  std::vector<double> mean(p.dim_v);
  const auto value = [&](int64_t t, int i) { return double(p.v[t * p.v_stride + i]); };
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int i = 0; i < p.dim_v; ++i) mean[i] += value(t, i) / double(p.tokens);
  }
  double widest = 0;
  for (int j = 0; j < p.group; ++j) {
    double sum = 0;
    for (int64_t t = 0; t < p.tokens; t += 8) {
      for (int a = 0; a < p.dim_v; ++a) {
        const float* row = p.metric + (int64_t{j} * p.dim_v + a) * p.dim_v;
        for (int b = 0; b < p.dim_v; ++b) sum += (value(t, a) - mean[a]) * row[b] * (value(t, b) - mean[b]);
      }
    }
    widest = std::max(widest, sum * 8 / double(p.tokens));
  }
  return widest;
}

void compare(const ScoreStatsProblem& problem, double relative = 1e-5) {
  SCOPED_TRACE(testing::Message() << "T " << problem.tokens << " H " << problem.group << " D " << problem.dim
                                  << " sink " << problem.sink << " recent " << problem.recent << " window "
                                  << problem.sliding_window << " queries " << problem.n_queries);
  const Sums expected = run(score_stats_reference, problem);
  const double power = value_power(problem);
  each_level([&](const KernelTable& level) {
    const Sums got = run(level.score_stats, problem);
    expect_close(got.mass, expected.mass, relative, "mass");
    expect_close(got.sink_mass, expected.sink_mass, relative, "sink_mass");
    expect_close(got.u, expected.u, relative, "u");
    expect_close(got.w, expected.w, relative, "w");
    // The distance of a value to an output that is nearly that value is rounding of their squares.
    const double rounding = 1e-6 * power;
    for (size_t i = 0; i < got.a.size(); ++i)
      ASSERT_NEAR(got.a[i], expected.a[i], relative * expected.a[i] + rounding) << "a " << i;
    for (size_t s = 0; s < got.x.size(); ++s)
      ASSERT_NEAR(got.x[s], expected.x[s], relative * expected.x[s] + rounding) << "x " << s;
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

TEST(ScoreStats, SoftCapAndSinkLogits) {
  for (const float cap : {0.0f, 2.0f, 30.0f}) {
    for (const float sink : {-INFINITY, 3.0f}) {
      for (const int64_t window : {0, 380})
        compare(Sequence(450, 2, 64, window, 0, -1, 48, cap, sink).problem);
    }
  }
}
// By hand: with l = cap tanh(x / cap), dl/dx = 1 - (l / cap)^2.
TEST(ScoreStats, OutputImportanceOfACappedLogit) {
  std::vector<float> q(2, 1), k{0, 3}, lse(2), v{1, -1}, o(2), metric{1};
  const double capped = 2 * std::tanh(1.5), all = std::log(1 + std::exp(capped)), p = std::exp(capped - all);
  lse[1] = static_cast<float>(all);
  o[1] = static_cast<float>(1 - 2 * p);
  ScoreStatsProblem problem{2, 1, 1, 1, 0, 0, 0, q.data(), 1, k.data(), 1, lse.data(), 2, nullptr, 2};
  problem.v = v.data();
  problem.v_stride = problem.o_stride = problem.dim_v = 1;
  problem.o = o.data();
  problem.metric = metric.data();
  problem.logit_cap = 2;
  const std::vector<int32_t> last{1};
  problem.queries = last.data();
  problem.n_queries = 1;
  const double slope = 1 - capped * capped / 4;
  each_level([&](const KernelTable& level) {
    const Sums s = run(level.score_stats, problem);
    EXPECT_NEAR(s.u[1], p, 1e-6);
    EXPECT_NEAR(s.x[1], std::pow(slope * p * (-1 - (1 - 2 * p)), 2), 1e-6);
    EXPECT_NEAR(s.x[0], std::pow((1 - p) * (1 - (1 - 2 * p)), 2), 1e-6);
  });
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

TEST(ScoreStats, OutputsOfOtherDims) {
  for (const int dim_v : {4, 24, 40, 64, 72, 128}) compare(Sequence(390, 3, 32, 0, 0, -1, dim_v).problem);
}

TEST(ScoreStats, ValuesChangeNoOtherSum) {
  Sequence sequence(500, 3, 64);
  const auto with = sequence.problem;
  sequence.problem.v = nullptr;
  for (const auto kernel : {score_stats, score_stats_reference}) {
    const Sums a = run(kernel, with), b = run(kernel, sequence.problem);
    EXPECT_EQ(a.mass, b.mass);
    EXPECT_EQ(a.sink_mass, b.sink_mass);
    EXPECT_EQ(a.entropy, b.entropy);
    EXPECT_EQ(a.u, b.u);
    EXPECT_EQ(a.w, b.w);
    EXPECT_EQ(b.x, std::vector<double>(500));
    EXPECT_EQ(b.a[10], -1);
  }
}

// By hand: two keys in the history share the attention of the last query equally, and the metric is the
// plane's.
TEST(ScoreStats, OutputImportanceByHand) {
  std::vector<float> q(3, 0), k(3, 0), lse(3), v{5, 5, 1, 0, 0, 3}, o(6), metric{1, 0, 0, 4};
  for (int t = 0; t < 3; ++t) lse[t] = std::log(static_cast<float>(t + 1));
  o[4] = 2;
  o[5] = 1;
  ScoreStatsProblem p{3, 1, 1, 1, 1, 0, 0, q.data(), 1, k.data(), 1, lse.data(), 3, nullptr, 3};
  p.v = v.data();
  p.v_stride = p.o_stride = p.dim_v = 2;
  p.o = o.data();
  p.metric = metric.data();
  const std::vector<int32_t> last{2};
  p.queries = last.data();
  p.n_queries = 1;
  each_level([&](const KernelTable& level) {
    const Sums s = run(level.score_stats, p);
    EXPECT_NEAR(s.x[1], (1 + 4 * 1) / 9., 1e-6);  // (1, 0) - (2, 1)
    EXPECT_NEAR(s.x[2], (4 + 4 * 4) / 9., 1e-6);  // (0, 3) - (2, 1)
    EXPECT_EQ(s.x[0], 0);
    EXPECT_NEAR(s.a[0], 25 / 9., 1e-6);
  });
}

// The mean of the values says nothing about their differences.
TEST(ScoreStats, ALargeMeanOfTheValuesCostsFewDigits) {
  Sequence sequence(400, 2, 32);
  for (auto* rows : {&sequence.v, &sequence.o})
    for (float& value : *rows) value += 1000;
  compare(sequence.problem, 1e-4);
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
      EXPECT_NEAR(merged.x[s] + rest.x[s], whole.x[s], 1e-6 * whole.x[s]);
    }
  });
}

TEST(ScoreStats, KeySumsAreAddedTo) {
  const Sequence sequence(400, 2, 32);
  each_level([&](const KernelTable& level) {
    Sums s = run(level.score_stats, sequence.problem);
    const auto u = s.u, w = s.w, x = s.x;
    level.score_stats(sequence.problem, s.result());
    for (size_t i = 0; i < u.size(); ++i) {
      EXPECT_EQ(s.u[i], 2 * u[i]);
      EXPECT_EQ(s.w[i], 2 * w[i]);
      EXPECT_EQ(s.x[i], 2 * x[i]);
    }
  });
}

TEST(ScoreStats, StridesOfInterleavedHeads) {
  const Sequence sequence(350, 2, 32);
  auto problem = sequence.problem;
  const int64_t stride = 3 * 2 * 32 + 7, k_stride = 5 * 32, lse_stride = 400;
  std::vector<float> q(problem.tokens * stride), k(problem.tokens * k_stride), lse(2 * lse_stride);
  std::vector<float> o(q), v(k);
  for (int64_t t = 0; t < problem.tokens; ++t) {
    std::copy_n(problem.o + t * problem.o_stride, 64, o.data() + t * stride);
    std::copy_n(problem.v + t * problem.v_stride, 32, v.data() + t * k_stride);
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
  problem.o = o.data();
  problem.v = v.data();
  problem.o_stride = stride;
  problem.v_stride = k_stride;
  each_level([&](const KernelTable& level) {
    const Sums a = run(level.score_stats, sequence.problem), b = run(level.score_stats, problem);
    EXPECT_EQ(a.mass, b.mass);
    EXPECT_EQ(a.u, b.u);
    EXPECT_EQ(a.a, b.a);
    EXPECT_EQ(a.x, b.x);
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
  const ScoreStatsResult result = s.result();
  for (const auto& queries : {std::vector<int32_t>{3, 2}, {64}, {-1}}) {
    sequence.problem.queries = queries.data();
    sequence.problem.n_queries = static_cast<int64_t>(queries.size());
    EXPECT_THROW(score_stats(sequence.problem, result), std::invalid_argument);
  }
}

TEST(ScoreStats, RefusesValuesWithoutTheRest) {
  Sequence sequence(64, 1, 32);
  Sums s = run(score_stats_reference, sequence.problem);
  auto problem = sequence.problem;
  problem.o = nullptr;
  EXPECT_THROW(score_stats(problem, s.result()), std::invalid_argument);
  problem = sequence.problem;
  problem.metric = nullptr;
  EXPECT_THROW(score_stats(problem, s.result()), std::invalid_argument);
  problem = sequence.problem;
  problem.dim_v = 0;
  EXPECT_THROW(score_stats(problem, s.result()), std::invalid_argument);
  auto result = s.result();
  result.x = nullptr;
  EXPECT_THROW(score_stats(sequence.problem, result), std::invalid_argument);
}

}  // namespace
}  // namespace oscar::test
