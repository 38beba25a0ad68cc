// Second moments on the GPU against sums in double precision.
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/gram_device.h"
#include "kernels/half.h"
#include "tests/cuda/bf16.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

struct Case {
  int64_t n;
  int heads, group, dim;
  int weightings = 3;  // all one, two of weights
  int64_t gap = 0;     // elements between the rows of two tokens
};

struct Moments {
  std::vector<double> gram[kMaxWeightings], sum[kMaxWeightings], total[kMaxWeightings];
};

struct Rows {
  Case c;
  int64_t stride;
  std::vector<uint16_t> rows;
  std::vector<float> weights[kMaxWeightings];  // empty: all one

  explicit Rows(const Case& shape)
      : c(shape), stride(int64_t{c.heads} * c.group * c.dim + c.gap), rows(c.n * stride) {
    for (int w = 1; w < c.weightings; ++w) weights[w].resize(c.n * c.heads * c.group);
  }
  double weight(int w, int query_head, int64_t t) const {
    return weights[w].empty() ? 1.0 : weights[w][query_head * c.n + t];
  }
};

Moments reference(const Rows& in) {
  const Case& c = in.c;
  const auto D = static_cast<size_t>(c.dim);
  Moments out;
  std::vector<double> x(D);
  for (int w = 0; w < c.weightings; ++w) {
    out.gram[w].resize(c.heads * D * D);
    out.sum[w].resize(c.heads * D);
    out.total[w].resize(c.heads);
    for (int q = 0; q < c.heads * c.group; ++q) {
      const int h = q / c.group;
      for (int64_t t = 0; t < c.n; ++t) {
        const double weight = in.weight(w, q, t);
        for (size_t i = 0; i < D; ++i) x[i] = bf16_to_float(in.rows[t * in.stride + q * c.dim + i]);
        out.total[w][h] += weight;
        for (size_t i = 0; i < D; ++i) {
          out.sum[w][h * D + i] += weight * x[i];
          double* row = out.gram[w].data() + (h * D + i) * D;
          for (size_t j = 0; j < D; ++j) row[j] += weight * x[i] * x[j];
        }
      }
    }
  }
  return out;
}

Moments found(const Rows& in, int poison) {
  const Case& c = in.c;
  const auto D = static_cast<size_t>(c.dim), H = static_cast<size_t>(c.heads);
  const DeviceArray<uint16_t> rows(in.rows);
  std::vector<std::unique_ptr<DeviceArray<float>>> weights;
  std::vector<std::unique_ptr<DeviceArray<double>>> outputs;
  GramBatch batch;
  batch.n = c.n;
  batch.heads = c.heads;
  batch.group = c.group;
  batch.dim = c.dim;
  batch.rows = rows.get();
  batch.stride = in.stride;
  batch.weightings = c.weightings;
  const auto output = [&](size_t count) {
    outputs.push_back(std::make_unique<DeviceArray<double>>(std::vector<double>(count, NAN)));
    return outputs.back()->get();
  };
  for (int w = 0; w < c.weightings; ++w) {
    if (!in.weights[w].empty()) {
      weights.push_back(std::make_unique<DeviceArray<float>>(in.weights[w]));
      batch.weights[w] = weights.back()->get();
    }
    batch.gram[w] = output(H * D * D);
    batch.sum[w] = output(H * D);
    batch.total[w] = output(H);
  }
  const DeviceArray<uint8_t> workspace(
      std::vector<uint8_t>(gram_workspace(batch), static_cast<uint8_t>(poison)));
  require(gram(batch, workspace.get(), nullptr));
  require(synchronize(nullptr));
  Moments out;
  for (int w = 0; w < c.weightings; ++w) {
    out.gram[w] = outputs[3 * w]->host();
    out.sum[w] = outputs[3 * w + 1]->host();
    out.total[w] = outputs[3 * w + 2]->host();
  }
  return out;
}

bool same_bytes(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// Largest error beside sqrt(G_ii G_jj), which bounds what was added up; `tolerance` 0: exactly.
void expect_close(const Rows& in, double tolerance) {
  const Case& c = in.c;
  SCOPED_TRACE(testing::Message() << "n " << c.n << " H " << c.heads << " G " << c.group << " D " << c.dim
                                  << " weightings " << c.weightings << " gap " << c.gap);
  const Moments truth = reference(in), got = found(in, 0xff), again = found(in, 0x3c);
  const auto D = static_cast<size_t>(c.dim);
  for (int w = 0; w < c.weightings; ++w) {
    double worst = 0, worst_sum = 0, skew = 0;
    const auto exceeds = [](double error) { return std::isnan(error) ? INFINITY : error; };
    for (int h = 0; h < c.heads; ++h) {
      const double* g = truth.gram[w].data() + h * D * D;
      const double* f = got.gram[w].data() + h * D * D;
      const double total = truth.total[w][h];
      for (size_t i = 0; i < D; ++i) {
        for (size_t j = 0; j < D; ++j) {
          const double size = std::sqrt(g[i * D + i] * g[j * D + j]) + 1e-30;
          worst = std::fmax(worst, exceeds(std::fabs(f[i * D + j] - g[i * D + j]) / size));
          skew = std::fmax(skew, exceeds(std::fabs(f[i * D + j] - f[j * D + i])));
        }
        const double size = std::sqrt(g[i * D + i] * total) + 1e-30;
        worst_sum =
            std::fmax(worst_sum, exceeds(std::fabs(got.sum[w][h * D + i] - truth.sum[w][h * D + i]) / size));
      }
      EXPECT_LE(std::fabs(got.total[w][h] - total), 1e-12 * total) << "weighting " << w;
    }
    EXPECT_LE(worst, tolerance) << "weighting " << w;
    EXPECT_LE(worst_sum, tolerance) << "weighting " << w;
    EXPECT_EQ(skew, 0) << "weighting " << w;
    EXPECT_TRUE(same_bytes(got.gram[w], again.gram[w]) && same_bytes(got.sum[w], again.sum[w]) &&
                same_bytes(got.total[w], again.total[w]))
        << "weighting " << w;
  }
}

// Small integers and powers of two: no sum is rounded.
void expect_exact(const Case& c) {
  Rows in(c);
  std::mt19937 random(3);
  for (auto& x : in.rows) x = to_bf16(static_cast<float>(static_cast<int>(random() % 9) - 4));
  for (auto& weights : in.weights) {
    for (auto& w : weights) w = std::ldexp(1.0f, static_cast<int>(random() % 4) - 2);
  }
  expect_close(in, 0);
}
// Rows with columns of very different size and a large token; weights over six orders of magnitude, some zero.
void expect_hard(const Case& c) {
  Rows in(c);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < in.rows.size(); ++i)
    in.rows[i] = to_bf16((normal(random) + 0.3f) * (i % 7 == 0 ? 30.0f : 1.0f) *
                         (static_cast<int64_t>(i) < in.stride ? 20.0f : 1.0f));
  for (auto& weights : in.weights) {
    for (auto& w : weights) w = random() % 5 == 0 ? 0.0f : std::exp(2 * normal(random) - 4);
  }
  expect_close(in, 8e-6);
}

TEST(CudaGram, ExactSumsAreExact) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 96, 128, 192, 256}) expect_exact({130, 2, 2, dim});
  for (const int64_t n : {1, 7, 130, 700, 2048}) expect_exact({n, 2, 3, 128, 2, 8});
}
TEST(CudaGram, AreThoseOfTheReference) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 96, 128, 192, 256}) expect_hard({700, 2, 4, dim});
  for (const int64_t n : {1, 7, 130, 2048}) expect_hard({n, 3, 1, 128, 3, 24});
  expect_hard({2048, 1, 8, 64, 1});
  expect_hard({5000, 1, 1, 256, 2});
}
TEST(CudaGram, OtherDimensionsArePadded) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {8, 16, 24, 80, 112, 160, 224}) expect_hard({150, 2, 2, dim, 3, 40});
}
TEST(CudaGram, NoRowsLeaveZeros) {
  OSCAR_NEEDS_DEVICE(info);
  Rows in({0, 2, 1, 64, 1});
  const Moments got = found(in, 0xff);
  EXPECT_EQ(got.gram[0], std::vector<double>(2 * 64 * 64));
  EXPECT_EQ(got.sum[0], std::vector<double>(2 * 64));
  EXPECT_EQ(got.total[0], std::vector<double>(2));
}
TEST(CudaGram, RefusesWhatItCannotDo) {
  GramBatch batch;
  batch.dim = 12;
  EXPECT_FALSE(gram(batch, nullptr, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
