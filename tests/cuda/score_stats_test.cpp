// Score statistics on the GPU against the double-precision reference, KV head by KV head.
#include "kernels/score_stats.h"

#include <bit>
#include <cmath>
#include <memory>
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
  int dim_v = 0;  // 0: no values
};

// An array in both types, of values that bfloat16 has. Rows are longer than asked for.
struct Rows {
  Rows(int64_t rows, int64_t width, int64_t padding)
      : stride(width + padding), values(rows * stride), bits(values.size()) {}
  void set(int64_t i, float x) {
    bits[i] = to_bf16(x);
    values[i] = bf16_to_float(bits[i]);
  }
  void upload() {
    device = std::make_unique<DeviceArray<float>>(values);
    device_bits = std::make_unique<DeviceArray<uint16_t>>(bits);
  }
  const void* on_device(bool f32) const {
    return f32 ? static_cast<const void*>(device->get()) : device_bits->get();
  }

  int64_t stride;
  std::vector<float> values;
  std::vector<uint16_t> bits;
  std::unique_ptr<DeviceArray<float>> device;
  std::unique_ptr<DeviceArray<uint16_t>> device_bits;
};

struct Sums {
  std::vector<float> mass, sink_mass, entropy, a;
  std::vector<double> u, w, x;
  Sums(int64_t rows, int64_t keys)
      : mass(rows), sink_mass(rows), entropy(rows), a(rows), u(keys, 1.0), w(keys, 1.0), x(keys, 1.0) {}
};

struct Layer {
  explicit Layer(const Case& wanted);
  void attend(int64_t head, int64_t t);
  ScoreStatsBatch batch(bool values) const;
  Sums found(bool values) const;
  Sums truth() const;

  Case c;
  int64_t T, Hq, D, Dv;
  float scale;
  Rows q, k, v, o;
  std::vector<float> lse, metric;
  std::vector<int32_t> queries;
  std::unique_ptr<DeviceArray<float>> d_lse, d_metric;
  std::unique_ptr<DeviceArray<int32_t>> d_queries;
};

Layer::Layer(const Case& wanted)
    : c(wanted),
      T(c.tokens),
      Hq(c.kv_heads * c.group),
      D(c.dim),
      Dv(c.dim_v),
      scale(static_cast<float>(1 / std::sqrt(double(D)))),
      q(T, Hq * D, 8),
      k(T, c.kv_heads * D, 16),
      v(T, c.kv_heads * Dv, 8),
      o(T, Hq * Dv, 16),
      lse(Hq * T),
      metric(Hq * Dv * Dv) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < q.values.size(); ++i) q.set(i, normal(random) * 1.5f);
  for (size_t i = 0; i < k.values.size(); ++i) k.set(i, normal(random) * 1.5f);
  for (int64_t i = 0; i < c.kv_heads * D; ++i) k.set(i, 3 * k.values[i]);  // a sink
  // Values around a mean of their own size.
  for (size_t i = 0; i < v.values.size(); ++i)
    v.set(i, normal(random) + std::sin(static_cast<float>(i % v.stride)));
  // Three directions and a little of everything.
  for (int64_t h = 0; h < Hq; ++h) {
    std::vector<float> directions(3 * Dv);
    for (float& x : directions) x = normal(random);
    for (int64_t i = 0; i < Dv; ++i) {
      for (int64_t e = 0; e < Dv; ++e) {
        float sum = i == e ? 0.1f : 0.f;
        for (int64_t n = 0; n < 3; ++n) sum += directions[n * Dv + i] * directions[n * Dv + e];
        metric[(h * Dv + i) * Dv + e] = sum;
      }
    }
  }
#pragma omp parallel for schedule(dynamic, 16)
  for (int64_t n = 0; n < Hq * T; ++n) attend(n / T, n % T);
  for (int32_t t = 0; t < T; ++t) {
    if (!c.some_queries || t % 7 == 3 || t > T - 5) queries.push_back(t);
  }
  for (Rows* rows : {&q, &k, &v, &o}) rows->upload();
  d_lse = std::make_unique<DeviceArray<float>>(lse);
  d_metric = std::make_unique<DeviceArray<float>>(metric);
  d_queries = std::make_unique<DeviceArray<int32_t>>(queries);
}

// lse and o of one query, with a sink logit of log 0.5.
void Layer::attend(int64_t head, int64_t t) {
  const int64_t first = c.window > 0 && t >= c.window ? t - c.window + 1 : 0, kv = head / c.group;
  double sum = 0.5;
  std::vector<double> output(Dv);
  for (int64_t s = first; s <= t; ++s) {
    double dot = 0;
    for (int64_t i = 0; i < D; ++i)
      dot += double(q.values[t * q.stride + head * D + i]) * k.values[s * k.stride + kv * D + i];
    dot *= scale;
    const double e = std::exp(c.cap > 0 ? c.cap * std::tanh(dot / c.cap) : dot);
    sum += e;
    for (int64_t i = 0; i < Dv; ++i) output[i] += e * v.values[s * v.stride + kv * Dv + i];
  }
  lse[head * T + t] = static_cast<float>(std::log(sum));
  for (int64_t i = 0; i < Dv; ++i) o.set(t * o.stride + head * Dv + i, static_cast<float>(output[i] / sum));
}

ScoreStatsBatch Layer::batch(bool values) const {
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
  in.q = q.on_device(c.f32);
  in.q_stride = q.stride;
  in.k = k.on_device(c.f32);
  in.k_stride = k.stride;
  in.lse = d_lse->get();
  in.lse_stride = T;
  in.queries = c.some_queries ? d_queries->get() : nullptr;
  in.n_queries = static_cast<int64_t>(queries.size());
  in.logit_cap = c.cap;
  if (!values) return in;
  in.v = v.on_device(c.f32);
  in.v_stride = v.stride;
  in.o = o.on_device(c.f32);
  in.o_stride = o.stride;
  in.metric = d_metric->get();
  in.dim_v = c.dim_v;
  return in;
}

Sums Layer::found(bool values) const {
  Sums sums(Hq * static_cast<int64_t>(queries.size()), c.kv_heads * T);
  const DeviceArray<float> mass(sums.mass), sink_mass(sums.sink_mass), entropy(sums.entropy), a(sums.a);
  const DeviceArray<double> u(sums.u), w(sums.w), x(sums.x);
  const ScoreStatsBatch in = batch(values);
  const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(score_stats_workspace(in), 0xff));
  ScoreStatsOutputs out{mass.get(), sink_mass.get(), entropy.get(), u.get(), w.get()};
  if (values) {
    out.a = a.get();
    out.x = x.get();
  }
  require(score_stats(in, out, workspace.get(), nullptr));
  require(synchronize(nullptr));
  sums.mass = mass.host();
  sums.sink_mass = sink_mass.host();
  sums.entropy = entropy.host();
  sums.a = a.host();
  sums.u = u.host();
  sums.w = w.host();
  sums.x = x.host();
  return sums;
}

Sums Layer::truth() const {
  const auto N = static_cast<int64_t>(queries.size());
  Sums sums(Hq * N, c.kv_heads * T);
#pragma omp parallel for
  for (int h = 0; h < c.kv_heads; ++h) {
    ScoreStatsProblem p{};
    p.tokens = T;
    p.group = c.group;
    p.dim = c.dim;
    p.scale = scale;
    p.sink = c.sink;
    p.recent = c.recent;
    p.sliding_window = c.window;
    p.q = q.values.data() + h * c.group * D;
    p.q_stride = q.stride;
    p.k = k.values.data() + h * D;
    p.k_stride = k.stride;
    p.lse = lse.data() + int64_t{h} * c.group * T;
    p.lse_stride = T;
    p.queries = c.some_queries ? queries.data() : nullptr;
    p.n_queries = N;
    p.logit_cap = c.cap;
    if (Dv > 0) {
      p.v = v.values.data() + h * Dv;
      p.v_stride = v.stride;
      p.o = o.values.data() + h * c.group * Dv;
      p.o_stride = o.stride;
      p.metric = metric.data() + h * c.group * Dv * Dv;
      p.dim_v = c.dim_v;
    }
    const int64_t row = h * c.group * N, key = h * T;
    score_stats_reference(p, {&sums.mass[row], &sums.sink_mass[row], &sums.entropy[row], &sums.u[key],
                              &sums.w[key], &sums.a[row], &sums.x[key]});
  }
  return sums;
}

// The largest difference in units of absolute + relative |truth|, infinite where there is a NaN.
template <class T>
double difference(const std::vector<T>& found, const std::vector<T>& truth, double absolute,
                  double relative) {
  double worst = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double x = std::fabs(found[i] - truth[i]) / (absolute + relative * std::fabs(truth[i]));
    worst = std::isnan(x) ? INFINITY : std::fmax(worst, x);
  }
  return worst;
}
template <class T>
double largest(const std::vector<T>& values, double base) {
  double most = 1e-30;
  for (const T x : values) most = std::fmax(most, x - base);
  return most;
}

void expect_close(const Case& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " H " << c.kv_heads << " G " << c.group << " D "
                                  << c.dim << " sink " << c.sink << " recent " << c.recent << " window "
                                  << c.window << " queries " << c.some_queries << " f32 " << c.f32 << " cap "
                                  << c.cap << " Dv " << c.dim_v);
  const Layer layer(c);
  const Sums found = layer.found(false), truth = layer.truth();
  EXPECT_LT(difference(found.mass, truth.mass, 1, 0), 2e-5);
  EXPECT_LT(difference(found.sink_mass, truth.sink_mass, 1, 0), 2e-5);
  EXPECT_LT(difference(found.entropy, truth.entropy, 1, 1), 2e-5);
  EXPECT_LT(difference(found.u, truth.u, 0, 1), 2e-5);
  EXPECT_LT(difference(found.w, truth.w, 0, 1), 2e-5);
  if (c.dim_v == 0) return;
  const Sums both = layer.found(true), again = layer.found(true);
  EXPECT_EQ(both.mass, found.mass);
  EXPECT_EQ(both.sink_mass, found.sink_mass);
  EXPECT_EQ(both.entropy, found.entropy);
  EXPECT_EQ(both.u, found.u);
  EXPECT_EQ(both.w, found.w);
  EXPECT_EQ(both.a, again.a);
  EXPECT_EQ(both.x, again.x);
  EXPECT_LT(difference(both.a, truth.a, largest(truth.a, 0), 0), 1e-4);
  EXPECT_LT(difference(both.x, truth.x, largest(truth.x, 1), 0), 1e-4);
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
TEST(CudaScoreStats, ValuesOfEveryDimension) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 96, 128, 256}) expect_close({900, 2, 4, dim, 32, 64, 0, false, false, 0, dim});
  expect_close({700, 2, 2, 192, 32, 64, 0, false, false, 0, 128});
  expect_close({700, 2, 2, 128, 32, 64, 0, false, false, 0, 72});
  expect_close({700, 1, 3, 64, 0, 0, 0, false, false, 0, 256});
  expect_close({65, 1, 1, 128, 0, 0, 0, false, false, 0, 128});
}
TEST(CudaScoreStats, ValuesOfEveryGroupWithWindowsQueriesAndCaps) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int group : {1, 2, 3, 5, 6, 7, 8})
    expect_close({500, 1, group, 128, 16, 32, 0, false, false, 0, 128});
  expect_close({1000, 2, 4, 128, 4, 16, 100, false, false, 0, 128});
  expect_close({1000, 2, 4, 128, 16, 64, 0, true, false, 0, 128});
  expect_close({1000, 2, 3, 64, 16, 64, 300, true, true, 0, 96});
  expect_close({1000, 2, 2, 256, 16, 64, 300, true, false, 20.0f, 256});
  expect_close({700, 2, 4, 96, 16, 64, 0, false, false, 5.0f, 128});
}
// What is not a number shows in its own row and in no other one.
TEST(CudaScoreStats, ANanStaysInItsRow) {
  OSCAR_NEEDS_DEVICE(info);
  Layer layer({400, 1, 2, 64, 4, 8});
  const Sums before = layer.found(false);
  layer.q.values[333 * layer.q.stride] = NAN;
  layer.q.bits[333 * layer.q.stride] = 0x7fc0;
  layer.q.upload();
  const Sums after = layer.found(false);
  for (int64_t n = 0; n < 2 * 400; ++n) {
    if (n == 333) {
      EXPECT_TRUE(std::isnan(after.mass[n]) && std::isnan(after.entropy[n]) &&
                  std::isnan(after.sink_mass[n]));
    } else {
      EXPECT_EQ(after.mass[n], before.mass[n]) << n;
      EXPECT_EQ(after.entropy[n], before.entropy[n]) << n;
    }
  }
  EXPECT_TRUE(std::isnan(after.u[100]) && std::isnan(after.w[100]));
}
TEST(CudaScoreStats, RefusesWhatItCannotDo) {
  ScoreStatsBatch in;
  in.dim = 12;
  EXPECT_FALSE(score_stats(in, {}, nullptr, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
