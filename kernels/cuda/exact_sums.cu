#include "kernels/exact_sums_device.h"

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/status.cuh"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;

// Knuth's two-sum, as in libcalib/exact_sums.cpp; no product is there to be contracted with, and the rounding is
// spelt out all the same.
OSCAR_DEVICE void two_sum(double& sum, double& error) {
  const double a = sum, b = error;
  sum = __dadd_rn(a, b);
  const double taken = __dsub_rn(sum, a);
  error = __dadd_rn(__dsub_rn(a, __dsub_rn(sum, taken)), __dsub_rn(b, taken));
}

// A carry of zero changes no further plane: sums that begin at +0 never are -0.
__global__ void __launch_bounds__(kThreads)
    add_exactly_kernel(double* planes, int plane_count, int64_t n, const double* values, int32_t* flags,
                       int32_t label) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kEach + threadIdx.x;
  double carry[kEach];
  bool lost = false, infinite = false;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = first + k * kThreads;
    carry[k] = i < n ? values[i] : 0.0;
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (isfinite(carry[k])) continue;
    carry[k] = 0;
    infinite = true;
  }
  for (int p = 0; p < plane_count; ++p) {
    double* const plane = planes + p * n + first;
    double sum[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) sum[k] = carry[k] != 0 ? plane[k * kThreads] : 0.0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (carry[k] == 0) continue;
      two_sum(sum[k], carry[k]);
      plane[k * kThreads] = sum[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) lost |= carry[k] != 0;  // NaN too, where a sum overflowed
  if (infinite) atomicMin(flags, label);
  if (lost) flags[1] = 1;
}

}  // namespace

Status add_exactly(double* planes, int plane_count, int64_t n, const double* values, int32_t* flags,
                   int32_t label, void* stream) {
  if (!planes || !values || !flags || plane_count < 1 || n < 0)
    return {"cuda::add_exactly: planes, values and flags must be given"};
  if (n == 0) return {};
  const int64_t blocks = (n + kThreads * kEach - 1) / (kThreads * kEach);
  if (blocks > 0x7fffffff) return {"cuda::add_exactly: too many values"};
  add_exactly_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      planes, plane_count, n, values, flags, label);
  return status_of(cudaGetLastError(), "launching exact sums");
}

}  // namespace oscar::cuda
