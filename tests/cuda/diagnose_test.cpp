// What attention loses, on the GPU against double arithmetic.
#include "kernels/diagnose.h"

#include <cmath>
#include <random>

#include "kernels/diagnose_device.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

struct Case {
  int64_t tokens, first_query;
  int group, dim_k, dim_v;
  int64_t sink, recent, window = 0;
  float noise = 0.05f, cap = 0;
  bool sinks = false;
};

struct Codes {
  std::vector<float> rows;
  int dim;
  CodeRows view() const {
    return {[](const void* self, int64_t first, int64_t count, float* to) {
              const auto& c = *static_cast<const Codes*>(self);
              std::copy_n(c.rows.data() + first * c.dim, count * c.dim, to);
            },
            this};
  }
};

struct Outcome {
  std::vector<double> kl, error, power;
  std::vector<uint8_t> top1;
  std::vector<float> o[4];
  Outcome(int64_t rows, int dim) : kl(rows, -1), error(rows, -1), power(rows, -1), top1(rows, 9) {
    for (auto& x : o) x.assign(rows * dim, NAN);
  }
  DiagnoseResult view() {
    return {kl.data(),   top1.data(), error.data(), power.data(),
            o[0].data(), o[1].data(), o[2].data(),  o[3].data()};
  }
};

void expect_close(const Case& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " from " << c.first_query << " G " << c.group
                                  << " D " << c.dim_k << "/" << c.dim_v << " sink " << c.sink << " recent "
                                  << c.recent << " window " << c.window << " noise " << c.noise << " cap "
                                  << c.cap << " sinks " << c.sinks);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const int64_t T = c.tokens, H = c.group, rows = (T - c.first_query) * H;
  std::vector<float> q(T * H * c.dim_k), k(T * c.dim_k), v(T * c.dim_v), sinks(H, 0.7f);
  for (float& x : q) x = 1.5f * normal(random);
  for (float& x : k) x = 1.5f * normal(random);
  for (float& x : v) x = normal(random);
  Codes k_codes{k, c.dim_k}, v_codes{v, c.dim_v};
  for (float& x : k_codes.rows) x += c.noise * normal(random);
  for (float& x : v_codes.rows) x += c.noise * normal(random);
  DiagnoseProblem p{};
  p.tokens = T;
  p.first_query = c.first_query;
  p.group = c.group;
  p.dim_k = c.dim_k;
  p.dim_v = c.dim_v;
  p.scale = static_cast<float>(1 / std::sqrt(double(c.dim_k)));
  p.sink = c.sink;
  p.recent = c.recent;
  p.sliding_window = c.window;
  p.q = q.data();
  p.q_stride = H * c.dim_k;
  p.k = k.data();
  p.v = v.data();
  p.k_codes = k_codes.view();
  p.v_codes = v_codes.view();
  p.logit_cap = c.cap;
  p.sink_logits = c.sinks ? sinks.data() : nullptr;
  Outcome truth(rows, c.dim_v), found(rows, c.dim_v);
  diagnose_reference(p, truth.view());
  require(cuda::diagnose(p, found.view()));
  int64_t disagree = 0;
  double kl = 0, logits = 0, power = 0;
  for (int64_t i = 0; i < rows; ++i) {
    kl = std::fmax(kl, std::fabs(found.kl[i] - truth.kl[i]) / (1e-6 + 1e-3 * truth.kl[i]));
    logits = std::fmax(logits, std::fabs(found.error[i] - truth.error[i]) / (1e-9 + truth.error[i]));
    power = std::fmax(power, std::fabs(found.power[i] - truth.power[i]) / (1e-9 + truth.power[i]));
    disagree += found.top1[i] != truth.top1[i];
    if (std::isnan(found.kl[i])) kl = INFINITY;
  }
  EXPECT_LT(kl, 1);
  EXPECT_LT(logits, c.noise < 1e-3f ? 5e-2 : 1e-3);
  EXPECT_LT(power, 1e-5);
  EXPECT_LE(disagree, rows / 1000);  // of logits that are equal in float32
  for (int which = 0; which < 4; ++which) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < rows * c.dim_v; ++i) {
      difference += std::pow(double(found.o[which][i]) - truth.o[which][i], 2);
      size += std::pow(truth.o[which][i], 2);
    }
    EXPECT_LT(std::sqrt(difference / size), 5e-6) << "output " << which;
  }
}

TEST(CudaDiagnose, IsTheReferenceInFloat32) {
  OSCAR_NEEDS_DEVICE(info);
  for (const int dim : {64, 80, 128, 256}) expect_close({700, 100, 4, dim, dim, 64, 128});
  expect_close({500, 0, 3, 192, 128, 4, 16});
  expect_close({500, 499, 1, 128, 128, 4, 16});
  expect_close({100, 0, 2, 64, 64, 200, 16});
  expect_close({100, 0, 2, 64, 64, 0, 0});
  expect_close({600, 50, 2, 128, 128, 64, 128, 0, 1e-4f});
  expect_close({600, 50, 2, 128, 128, 64, 128, 0, 0.5f});
}
TEST(CudaDiagnose, WindowsCapsAndSinks) {
  OSCAR_NEEDS_DEVICE(info);
  expect_close({700, 100, 4, 128, 128, 64, 16, 200});
  expect_close({700, 0, 2, 64, 64, 4, 32, 100, 0.05f, 8.0f});
  expect_close({700, 300, 2, 128, 128, 64, 128, 0, 0.05f, 20.0f, true});
}
TEST(CudaDiagnose, RefusesHeadDimsThatItHasNoKernelFor) {
  DiagnoseProblem p{};
  p.dim_k = 6;
  EXPECT_FALSE(cuda::diagnose(p, DiagnoseResult{}).ok());
}

}  // namespace
}  // namespace oscar::cuda
