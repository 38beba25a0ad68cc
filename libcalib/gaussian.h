// Seeded normal numbers and the Lloyd-Max levels of N(0, 1), the same on every machine.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

namespace oscar {

// std::normal_distribution differs between standard libraries; Box-Muller on the engine's own integers does
// not, up to the last bits of log and cos, which are rounded away: values are multiples of 2^-40.
class GaussianSource {
 public:
  explicit GaussianSource(uint64_t seed) : engine_(seed) {}
  double operator()();
  double uniform();  // (0, 1]

 private:
  std::mt19937_64 engine_;
};

// 2^bits centroids, ascending, of the quantiser of least squared error; bits 0 gives {0}.
std::vector<float> gaussian_levels(int bits);

}  // namespace oscar
