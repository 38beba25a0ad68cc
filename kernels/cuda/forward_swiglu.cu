#include "kernels/cuda/forward_rows.cuh"
#include "kernels/cuda/status.cuh"
#include "kernels/forward_device.h"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 256;

// Eight elements a thread. Grid: rows, width / 8 / kThreads.
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const uint16_t* in, int64_t width, uint16_t* out) {
  const int64_t row = blockIdx.x, column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * 8;
  if (column >= width) return;
  const uint16_t* from = in + row * 2 * width + column;
  float gate[8], up[8];
  unpack8(gate, *reinterpret_cast<const uint4*>(from));
  unpack8(up, *reinterpret_cast<const uint4*>(from + width));
#pragma unroll
  for (int i = 0; i < 8; ++i) gate[i] = __fdividef(gate[i], 1 + __expf(-gate[i])) * up[i];
  store8(out + row * width + column, gate);
}

}  // namespace

Status swiglu(const void* in, int64_t rows, int64_t width, void* out, void* stream) {
  if (!in || !out) return {"cuda::swiglu: in and out must be given"};
  if (rows < 0 || rows > 0x7fffffff || width < 8 || width % 8 != 0 || width > 65535 * 8 * int64_t{kThreads})
    return {"cuda::swiglu: widths are multiples of 8, rows fewer than 2^31"};
  if (rows == 0) return {};
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((width / 8 + kThreads - 1) / kThreads));
  swiglu_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint16_t*>(in),
                                                                          width, static_cast<uint16_t*>(out));
  return status_of(cudaGetLastError(), "launching swiglu");
}

}  // namespace oscar::cuda
