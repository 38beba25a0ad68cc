// Sums without rounding on the GPU: the bits of the CPU's two-sums.
#include "kernels/exact_sums_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tests/cuda/device_memory.h"

namespace oscar::cuda {
namespace {

constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

void two_sum(double& sum, double& error) {
  const double a = sum, b = error;
  sum = a + b;
  const double taken = sum - a;
  error = (a - (sum - taken)) + (b - taken);
}

// As ExactSums::add: every plane takes what the one before rounded off. True when something is left.
bool add_on_host(std::vector<double>& planes, int plane_count, std::vector<double> carry) {
  const size_t n = carry.size();
  for (int p = 0; p < plane_count; ++p) {
    for (size_t i = 0; i < n; ++i) two_sum(planes[p * n + i], carry[i]);
  }
  return std::ranges::any_of(carry, [](double x) { return x != 0; });
}

// Numbers of all signs, `binades` of sizes, and zeros of both signs.
std::vector<double> values_of(size_t n, int seed, int binades) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(n);
  for (double& x : values) {
    const auto kind = random() % 16;
    x = kind == 0   ? 0.0
        : kind == 1 ? -0.0
                    : std::ldexp(uniform(random), static_cast<int>(random() % binades));
  }
  return values;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// 60 additions; what is lost by the CPU is reported lost, and not before.
void expect_same_bits(size_t n, int plane_count, int binades, bool expect_loss) {
  SCOPED_TRACE(testing::Message() << "n " << n << " planes " << plane_count << " binades " << binades);
  std::vector<double> truth(n * plane_count);
  const DeviceArray<double> planes(truth);
  const DeviceArray<int32_t> flags(std::vector<int32_t>{kNone, 0});
  bool lost = false;
  for (int k = 0; k < 60; ++k) {
    const auto values = values_of(n, k, binades);
    const DeviceArray<double> on_device(values);
    require(add_exactly(planes.get(), plane_count, static_cast<int64_t>(n), on_device.get(), flags.get(), k,
                        nullptr));
    lost = add_on_host(truth, plane_count, values) || lost;
    EXPECT_EQ(flags.host()[1], lost ? 1 : 0) << "addition " << k;
  }
  EXPECT_TRUE(same_bits(planes.host(), truth));
  EXPECT_EQ(flags.host()[0], kNone);
  EXPECT_EQ(lost, expect_loss);
}

TEST(CudaExactSums, AreTheBitsOfTheCpu) {
  OSCAR_NEEDS_DEVICE(info);
  for (const size_t n : {1, 7, 130, 700, 2048, 5001}) expect_same_bits(n, 3, 20, false);
  expect_same_bits(2048, 1, 20, true);
  expect_same_bits(2048, 2, 200, true);
  expect_same_bits(2048, 7, 200, false);
}
TEST(CudaExactSums, LeavesOutWhatIsNotFinite) {
  OSCAR_NEEDS_DEVICE(info);
  const size_t n = 700;
  std::vector<double> truth(3 * n);
  const DeviceArray<double> planes(truth);
  const DeviceArray<int32_t> flags(std::vector<int32_t>{kNone, 0});
  for (const int32_t label : {9, 4, 6}) {
    auto values = values_of(n, label, 20);
    if (label != 9) {
      values[label] = std::numeric_limits<double>::quiet_NaN();
      values[n - 1] = -std::numeric_limits<double>::infinity();
    }
    const DeviceArray<double> on_device(values);
    require(add_exactly(planes.get(), 3, n, on_device.get(), flags.get(), label, nullptr));
    for (double& x : values) x = std::isfinite(x) ? x : 0;
    EXPECT_FALSE(add_on_host(truth, 3, values));
    EXPECT_EQ(flags.host()[0], label == 9 ? kNone : 4) << label;
  }
  EXPECT_TRUE(same_bits(planes.host(), truth));
  EXPECT_EQ(flags.host()[1], 0);
}
TEST(CudaExactSums, AnOverflowIsALoss) {
  OSCAR_NEEDS_DEVICE(info);
  const std::vector<double> largest{std::numeric_limits<double>::max()};
  const DeviceArray<double> planes(std::vector<double>(3)), values(largest);
  const DeviceArray<int32_t> flags(std::vector<int32_t>{kNone, 0});
  require(add_exactly(planes.get(), 3, 1, values.get(), flags.get(), 0, nullptr));
  EXPECT_EQ(flags.host()[1], 0);
  require(add_exactly(planes.get(), 3, 1, values.get(), flags.get(), 0, nullptr));
  EXPECT_EQ(flags.host()[1], 1);
}
TEST(CudaExactSums, RefusesWhatItCannotDo) {
  EXPECT_FALSE(add_exactly(nullptr, 3, 1, nullptr, nullptr, 0, nullptr).ok());
}

}  // namespace
}  // namespace oscar::cuda
