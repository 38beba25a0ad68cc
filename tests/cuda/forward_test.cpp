// Row operations of a forward pass on the GPU against double precision: what is found is the nearest bfloat16
// or, where two are as near to within float32's accuracy, one of them.
#include "kernels/forward_device.h"

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/half.h"
#include "tests/cuda/bf16.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

std::vector<float> normals(size_t n, int seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = normal(random) * size * (i % 97 == 5 ? 40.0f : 1.0f);
  return values;
}
std::vector<uint16_t> rounded(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float x : values) bits.push_back(to_bf16(x));
  return bits;
}

// `sizes`: of what was added up to a value, which float32 errors are relative to.
void expect_rounded(const std::vector<uint16_t>& found, const std::vector<double>& truth,
                    const std::vector<double>& sizes) {
  ASSERT_EQ(found.size(), truth.size());
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double nearest = std::fabs(bf16_to_float(to_bf16(static_cast<float>(truth[i]))) - truth[i]);
    const double error = std::fabs(bf16_to_float(found[i]) - truth[i]);
    if (error <= nearest + 2e-6 * sizes[i] + 1e-38) continue;
    if (wrong++ == 0) first = i;
  }
  EXPECT_EQ(wrong, 0u) << "the first at " << first << ": " << bf16_to_float(found[first]) << " for "
                       << truth[first];
}
void expect_rounded(const std::vector<uint16_t>& found, const std::vector<double>& truth) {
  std::vector<double> sizes;
  for (const double x : truth) sizes.push_back(std::fabs(x));
  expect_rounded(found, truth, sizes);
}

constexpr double kEps = 1e-5;

// rms_norm() of x in double precision; powers: 1 / |x|^2.
std::vector<double> normed(const std::vector<double>& x, const std::vector<float>& weight, int64_t rows,
                           int columns, std::vector<double>* powers = nullptr) {
  std::vector<double> out(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double power = 0;
    for (int c = 0; c < columns; ++c) power += x[r * columns + c] * x[r * columns + c];
    if (powers) powers->push_back(1 / std::fmax(power, 1e-30));
    for (int c = 0; c < columns; ++c)
      out[r * columns + c] = x[r * columns + c] / std::sqrt(power / columns + kEps) * weight[c];
  }
  return out;
}

void expect_near(const std::vector<float>& found, const std::vector<double>& truth, double tolerance) {
  ASSERT_EQ(found.size(), truth.size());
  double worst = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double error = std::fabs(found[i] - truth[i]) / (std::fabs(truth[i]) + 1e-30);
    worst = std::isnan(error) ? INFINITY : std::fmax(worst, error);
  }
  EXPECT_LE(worst, tolerance);
}

void expect_norm(int64_t rows, int columns) {
  SCOPED_TRACE(testing::Message() << "rows " << rows << " columns " << columns);
  auto x = normals(rows * columns, 1, 0.7f);
  std::fill_n(x.begin(), columns, 0.0f);  // a row of zeros
  const auto weight = normals(columns, 2);
  const DeviceArray<float> d_x(x), d_weight(weight), powers(rows);
  const DeviceArray<uint16_t> out(rows * columns);
  require(rms_norm(d_x.get(), d_weight.get(), kEps, rows, columns, out.get(), powers.get(), nullptr));
  std::vector<double> true_powers;
  const std::vector<double> wide(x.begin(), x.end());
  expect_rounded(out.host(), normed(wide, weight, rows, columns, &true_powers));
  expect_near(powers.host(), true_powers, 1e-6);

  const auto update = rounded(normals(rows * columns, 3));
  const DeviceArray<uint16_t> d_update(update);
  const float scale = 0.37f;
  std::vector<double> sums, sizes;
  for (size_t i = 0; i < x.size(); ++i) {
    const double added = double{scale} * bf16_to_float(update[i]);
    sums.push_back(x[i] + added);
    sizes.push_back(std::fabs(x[i]) + std::fabs(added));
  }
  require(add_and_norm(d_x.get(), d_update.get(), scale, d_weight.get(), kEps, rows, columns, out.get(),
                       powers.get(), nullptr));
  const auto hidden = d_x.host();
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::fmax(worst, std::fabs(hidden[i] - sums[i]) / (sizes[i] + 1e-30));
  EXPECT_LE(worst, 1.3e-7);
  true_powers.clear();
  const std::vector<double> kept(hidden.begin(), hidden.end());
  expect_rounded(out.host(), normed(kept, weight, rows, columns, &true_powers));
  expect_near(powers.host(), true_powers, 1e-6);

  // Without a norm, and with the power alone, the sum is the same.
  for (float* asked : {static_cast<float*>(nullptr), powers.get()}) {
    const DeviceArray<float> again(x);
    require(clear(powers.get(), rows * sizeof(float), nullptr));
    require(add_and_norm(again.get(), d_update.get(), scale, nullptr, kEps, rows, columns, nullptr, asked,
                         nullptr));
    EXPECT_EQ(again.host(), hidden);
    if (asked) expect_near(powers.host(), true_powers, 1e-6);
  }
}

TEST(CudaForward, NormsOfRows) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int columns : {4, 48, 576, 4096, 5124, 16384, 20480, 32768}) expect_norm(3, columns);
  for (const int64_t rows : {1, 7, 130}) expect_norm(rows, 896);
  EXPECT_FALSE(rms_norm(nullptr, nullptr, kEps, 1, 6, nullptr, nullptr, nullptr).ok());
}

struct Heads {
  int heads, dim, rotary_dim;  // rotary_dim 0: no rotation
  bool norm = false, neighbours = false;
};

// Jobs side by side in rows of `gap` more elements, the first from column `column` on.
void expect_turned(int64_t rows, const std::vector<Heads>& all, int64_t column = 0, int64_t gap = 0) {
  SCOPED_TRACE(testing::Message() << "rows " << rows << " jobs " << all.size() << " dim " << all[0].dim
                                  << " rotary " << all[0].rotary_dim << " column " << column);
  int64_t stride = column + gap;
  for (const Heads& h : all) stride += int64_t{h.heads} * h.dim;
  const auto in = rounded(normals(rows * stride, 4));
  const DeviceArray<uint16_t> d_in(in);
  std::vector<std::unique_ptr<DeviceArray<float>>> tables;
  std::vector<std::unique_ptr<DeviceArray<uint16_t>>> outs;
  std::vector<RotaryRows> jobs;
  std::vector<std::vector<double>> truths, sizes;
  const auto on_device = [&](const std::vector<float>& values) {
    tables.push_back(std::make_unique<DeviceArray<float>>(values));
    return tables.back()->get();
  };
  for (const Heads& h : all) {
    const int D = h.dim, half = h.rotary_dim / 2;
    const auto weight = normals(D, 6);
    std::vector<float> cos(rows * half), sin(rows * half);
    for (int64_t i = 0; i < rows * half; ++i) {
      const double angle = 0.37 * static_cast<double>(i);
      cos[i] = static_cast<float>(std::cos(angle)) * 1.2f;
      sin[i] = static_cast<float>(std::sin(angle)) * 1.2f;
    }
    outs.push_back(std::make_unique<DeviceArray<uint16_t>>(rows * h.heads * D));
    RotaryRows job;
    job.in = d_in.get();
    job.in_stride = stride;
    job.column = column;
    job.heads = h.heads;
    job.dim = D;
    job.rows = rows;
    job.norm = h.norm ? on_device(weight) : nullptr;
    job.eps = kEps;
    job.cos = half > 0 ? on_device(cos) : nullptr;
    job.sin = half > 0 ? on_device(sin) : nullptr;
    job.rotary_dim = h.rotary_dim;
    job.neighbours = h.neighbours;
    job.out = outs.back()->get();
    jobs.push_back(job);

    std::vector<double> truth(rows * h.heads * D), size(truth.size());
    for (int64_t t = 0; t < rows; ++t) {
      for (int k = 0; k < h.heads; ++k) {
        std::vector<double> x(D);
        for (int i = 0; i < D; ++i) x[i] = bf16_to_float(in[t * stride + column + k * D + i]);
        if (h.norm) x = normed(x, weight, 1, D);
        double* y = truth.data() + (t * h.heads + k) * D;
        double* s = size.data() + (t * h.heads + k) * D;
        for (int i = 0; i < D; ++i) s[i] = std::fabs(y[i] = x[i]);
        for (int i = 0; i < half; ++i) {
          const int a = h.neighbours ? 2 * i : i, b = h.neighbours ? 2 * i + 1 : i + half;
          const double c = cos[t * half + i], d = sin[t * half + i];
          y[a] = x[a] * c - x[b] * d;
          y[b] = x[b] * c + x[a] * d;
          s[a] = s[b] = 1.2 * (std::fabs(x[a]) + std::fabs(x[b]));
        }
      }
    }
    truths.push_back(truth);
    sizes.push_back(size);
    column += int64_t{h.heads} * D;
  }
  require(rotary(jobs.data(), static_cast<int>(jobs.size()), nullptr));
  for (size_t j = 0; j < jobs.size(); ++j) expect_rounded(outs[j]->host(), truths[j], sizes[j]);
}

TEST(CudaForward, HeadsAreNormedAndTurned) {
  OSCAR_NEEDS_DEVICE(info);
  expect_turned(130, {{32, 128, 128}, {8, 128, 128}, {8, 128, 0}});
  expect_turned(7, {{6, 128, 128, true}, {2, 128, 128, true}, {2, 128, 0}}, 24, 8);
  for (const int dim : {16, 64, 80, 96, 192, 256, 512})
    expect_turned(5, {{3, dim, dim / 32 * 16, true}, {1, dim, dim}});
  expect_turned(5, {{4, 128, 64, true, true}, {2, 128, 128, false, true}, {2, 64, 0}});
  expect_turned(1, {{5, 64, 64}});
}
TEST(CudaForward, HeadsOfAnyShape) {
  OSCAR_NEEDS_DEVICE(info);
  expect_turned(9, {{4, 20, 20, true}, {2, 20, 20, true}, {2, 20, 0}});
  expect_turned(9, {{4, 16, 8, false, true}, {2, 16, 8, true}, {2, 16, 0, true}}, 3);
  expect_turned(7, {{3, 100, 24}, {3, 100, 24, false, true}}, 0, 1);
  RotaryRows job;
  EXPECT_FALSE(rotary(&job, 1, nullptr).ok());
}

void expect_swiglu(int64_t rows, int64_t width) {
  SCOPED_TRACE(testing::Message() << "rows " << rows << " width " << width);
  const auto in = rounded(normals(rows * 2 * width, 8, 4));
  const DeviceArray<uint16_t> d_in(in), out(rows * width);
  require(swiglu(d_in.get(), rows, width, out.get(), nullptr));
  std::vector<double> truth, sizes;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const double gate = bf16_to_float(in[r * 2 * width + c]),
                   up = bf16_to_float(in[(2 * r + 1) * width + c]);
      truth.push_back(gate / (1 + std::exp(-gate)) * up);
      // The argument of the exponential is float32, and what is below 1e-33 may be zero.
      sizes.push_back(std::fabs(truth.back()) * (1 + std::fabs(gate) / 2) + 1e-27 * std::fabs(up));
    }
  }
  expect_rounded(out.host(), truth, sizes);
}

TEST(CudaForward, GatedProducts) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int64_t width : {8, 24, 2880, 12288}) expect_swiglu(3, width);
  expect_swiglu(131, 512);
  EXPECT_FALSE(swiglu(nullptr, 1, 8, nullptr, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
