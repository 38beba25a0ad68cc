// Score statistics on the GPU against the double-precision reference, KV head by KV head.
#include "kernels/score_stats.h"

#include <bit>
#include <cmath>
#include <random>

#include "kernels/half.h"
#include "kernels/score_stats_device.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct Case {
  int64_t tokens;
  int kv_heads, group, dim;
  int64_t sink, recent, window = 0;
  bool some_queries = false, f32 = false;
  float cap = 0;
};

// The largest difference, relative to the largest value for sums over queries, absolute for sums of
// probabilities.
void expect_close(const Case& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " H " << c.kv_heads << " G " << c.group << " D "
                                  << c.dim << " sink " << c.sink << " recent " << c.recent << " window "
                                  << c.window << " queries " << c.some_queries << " f32 " << c.f32 << " cap "
                                  << c.cap);
  const int64_t T = c.tokens, Hq = c.kv_heads * c.group, D = c.dim;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> q(T * Hq * D), k(T * c.kv_heads * D);
  std::vector<uint16_t> q_bf16(q.size()), k_bf16(k.size());
  const auto fill = [&](std::vector<float>& x, std::vector<uint16_t>& bits, float size) {
    for (size_t i = 0; i < x.size(); ++i) {
      bits[i] = to_bf16(normal(random) * size);
      x[i] = bf16_to_float(bits[i]);
    }
  };
  fill(q, q_bf16, 1.5f);
  fill(k, k_bf16, 1.5f);
  for (int64_t i = 0; i < D; ++i)
    k_bf16[i] = to_bf16(k[i] = 3 * k[i]), k[i] = bf16_to_float(k_bf16[i]);  // a sink
  const auto scale = static_cast<float>(1 / std::sqrt(double(D)));
  std::vector<int32_t> queries;
  for (int32_t t = 0; t < T; ++t) {
    if (!c.some_queries || t % 7 == 3 || t > T - 5) queries.push_back(t);
  }
  const auto N = static_cast<int64_t>(queries.size());
  std::vector<float> lse(Hq * T);
  for (int64_t h = 0; h < Hq; ++h) {
    for (int64_t t = 0; t < T; ++t) {
      double sum = 0.5;  // a sink logit of log 0.5
      const int64_t first = c.window > 0 && t >= c.window ? t - c.window + 1 : 0;
      for (int64_t s = first; s <= t; ++s) {
        double dot = 0;
        for (int64_t i = 0; i < D; ++i)
          dot += double(q[(t * Hq + h) * D + i]) * k[(s * c.kv_heads + h / c.group) * D + i];
        dot *= scale;
        sum += std::exp(c.cap > 0 ? c.cap * std::tanh(dot / c.cap) : dot);
      }
      lse[h * T + t] = static_cast<float>(std::log(sum));
    }
  }

  const DeviceArray<float> d_q(q), d_k(k), d_lse(lse), mass(Hq * N), sink_mass(Hq * N), entropy(Hq * N);
  const DeviceArray<uint16_t> d_q16(q_bf16), d_k16(k_bf16);
  const DeviceArray<int32_t> d_queries(queries);
  const std::vector<double> before(c.kv_heads * T, 1.0);
  const DeviceArray<double> u(before), w(before);
  ScoreStatsBatch in;
  in.tokens = T;
  in.kv_heads = c.kv_heads;
  in.group = c.group;
  in.dim = c.dim;
  in.scale = scale;
  in.sink = c.sink;
  in.recent = c.recent;
  in.sliding_window = c.window;
  in.type = c.f32 ? FloatType::f32 : FloatType::bf16;
  in.q = c.f32 ? static_cast<const void*>(d_q.get()) : d_q16.get();
  in.k = c.f32 ? static_cast<const void*>(d_k.get()) : d_k16.get();
  in.q_stride = Hq * D;
  in.k_stride = c.kv_heads * D;
  in.lse = d_lse.get();
  in.lse_stride = T;
  in.queries = c.some_queries ? d_queries.get() : nullptr;
  in.n_queries = N;
  in.logit_cap = c.cap;
  const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(score_stats_workspace(in), 0xff));
  require(score_stats(in, {mass.get(), sink_mass.get(), entropy.get(), u.get(), w.get()}, workspace.get(),
                      nullptr));
  require(synchronize(nullptr));
  const auto found_mass = mass.host(), found_sink = sink_mass.host(), found_entropy = entropy.host();
  const auto found_u = u.host(), found_w = w.host();

  for (int h = 0; h < c.kv_heads; ++h) {
    ScoreStatsProblem p{};
    p.tokens = T;
    p.group = c.group;
    p.dim = c.dim;
    p.scale = scale;
    p.sink = c.sink;
    p.recent = c.recent;
    p.sliding_window = c.window;
    p.q = q.data() + h * c.group * D;
    p.q_stride = Hq * D;
    p.k = k.data() + h * D;
    p.k_stride = c.kv_heads * D;
    p.lse = lse.data() + int64_t{h} * c.group * T;
    p.lse_stride = T;
    p.queries = c.some_queries ? queries.data() : nullptr;
    p.n_queries = N;
    p.logit_cap = c.cap;
    std::vector<float> true_mass(c.group * N), true_sink(c.group * N), true_entropy(c.group * N);
    std::vector<double> true_u(T, 1.0), true_w(T, 1.0);
    ScoreStatsResult result{};
    result.mass = true_mass.data();
    result.sink_mass = true_sink.data();
    result.entropy = true_entropy.data();
    result.u = true_u.data();
    result.w = true_w.data();
    score_stats_reference(p, result);
    double rows = 0, logs = 0, columns = 0;
    for (int64_t i = 0; i < c.group * N; ++i) {
      const int64_t at = int64_t{h} * c.group * N + i;
      rows = std::fmax(rows, std::fabs(found_mass[at] - true_mass[i]));
      rows = std::fmax(rows, std::fabs(found_sink[at] - true_sink[i]));
      logs =
          std::fmax(logs, std::fabs(found_entropy[at] - true_entropy[i]) / (1 + std::fabs(true_entropy[i])));
      if (std::isnan(found_mass[at]) || std::isnan(found_sink[at]) || std::isnan(found_entropy[at]))
        rows = INFINITY;
    }
    for (int64_t s = 0; s < T; ++s) {
      columns = std::fmax(columns, std::fabs(found_u[h * T + s] - true_u[s]) / true_u[s]);
      columns = std::fmax(columns, std::fabs(found_w[h * T + s] - true_w[s]) / true_w[s]);
      if (std::isnan(found_u[h * T + s]) || std::isnan(found_w[h * T + s])) columns = INFINITY;
    }
    EXPECT_LT(rows, 2e-5) << "KV head " << h;
    EXPECT_LT(logs, 2e-5) << "KV head " << h;
    EXPECT_LT(columns, 2e-5) << "KV head " << h;
  }
}

TEST(CudaScoreStats, AreThoseOfTheReference) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 80, 96, 128, 192, 256}) expect_close({1100, 2, 4, dim, 64, 256});
  expect_close({1, 1, 1, 128, 0, 0});
  expect_close({77, 2, 3, 128, 4, 8});
  expect_close({1300, 1, 8, 128, 0, 0});
  expect_close({1300, 2, 2, 64, 600, 32});
  expect_close({300, 2, 2, 64, 600, 400});
}
TEST(CudaScoreStats, WindowsQueriesCapsAndFloatRows) {
  OSCAR_NEEDS_DEVICE(info);
  expect_close({1400, 2, 4, 128, 4, 16, 100});
  expect_close({1400, 1, 2, 64, 64, 16, 600});
  expect_close({1400, 2, 4, 128, 64, 256, 0, true});
  expect_close({1400, 2, 3, 256, 64, 16, 300, true, false, 20.0f});
  expect_close({900, 2, 4, 128, 64, 256, 0, false, true});
  expect_close({900, 2, 4, 96, 64, 256, 0, false, false, 5.0f});
}
TEST(CudaScoreStats, RefusesWhatItCannotDo) {
  ScoreStatsBatch in;
  in.dim = 12;
  EXPECT_FALSE(score_stats(in, {}, nullptr, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
