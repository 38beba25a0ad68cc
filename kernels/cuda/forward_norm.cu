// Norms of whole rows: a block a row, which stays in registers between the sum and the product.
#include "kernels/cuda/forward_rows.cuh"
#include "kernels/cuda/status.cuh"
#include "kernels/forward_device.h"

namespace oscar::cuda {
namespace {

struct NormArguments {
  const float* x;  // what is read; with an update, what is written too
  float* hidden;
  const uint16_t* update;
  float scale;
  const float* weight;
  double eps, column_inverse;
  int columns;
  uint16_t* out;
  float* inverse_power;
};

// kPieces: of four columns, a thread.
template <bool kAdd, int kPieces>
__global__ void __launch_bounds__(1024, kPieces == 2 ? 2 : 1) norm_kernel(const NormArguments a) {
  __shared__ float powers[32];
  __shared__ float shared_inverse;
  const int64_t row = blockIdx.x, at = row * a.columns;
  const int pieces = a.columns / 4, lane = threadIdx.x & 31;
  float4 x[kPieces];
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    const int piece = threadIdx.x + k * blockDim.x;
    x[k] = piece < pieces ? __ldcs(reinterpret_cast<const float4*>(a.x + at) + piece) : float4{};
  }
  if constexpr (kAdd) {
    uint2 update[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int piece = threadIdx.x + k * blockDim.x;
      update[k] = piece < pieces ? __ldcs(reinterpret_cast<const uint2*>(a.update + at) + piece) : uint2{};
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const int piece = threadIdx.x + k * blockDim.x;
      const float2 low = unpack(update[k].x), high = unpack(update[k].y);
      x[k].x += a.scale * low.x;
      x[k].y += a.scale * low.y;
      x[k].z += a.scale * high.x;
      x[k].w += a.scale * high.y;
      if (piece < pieces) reinterpret_cast<float4*>(a.hidden + at)[piece] = x[k];
    }
    if (!a.out && !a.inverse_power) return;
  }
  // Before the barriers, where waiting for it costs nothing; eight pieces more do not fit into registers.
  const auto weight_of = [&](int k) {
    const int piece = threadIdx.x + k * blockDim.x;
    return a.out && piece < pieces ? reinterpret_cast<const float4*>(a.weight)[piece] : float4{};
  };
  constexpr bool kEarly = kPieces < 8;
  float4 weight[kPieces];
#pragma unroll
  for (int k = 0; k < kPieces && kEarly; ++k) weight[k] = weight_of(k);
  float power = 0;
#pragma unroll
  for (int k = 0; k < kPieces; ++k)
    power += x[k].x * x[k].x + x[k].y * x[k].y + x[k].z * x[k].z + x[k].w * x[k].w;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) power += __shfl_xor_sync(kWarp, power, distance);
  if (lane == 0) powers[threadIdx.x / 32] = power;
  __syncthreads();
  if (threadIdx.x < 32) {
    double sum = lane < blockDim.x / 32 ? powers[lane] : 0.0f;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWarp, sum, distance);
    if (lane == 0) {
      shared_inverse = __frsqrt_rn(static_cast<float>(sum * a.column_inverse + a.eps));
      if (a.inverse_power) a.inverse_power[row] = __frcp_rn(static_cast<float>(fmax(sum, 1e-30)));
    }
  }
  if (!a.out) return;
  __syncthreads();
  const float inverse = shared_inverse;
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    const int piece = threadIdx.x + k * blockDim.x;
    if (piece >= pieces) continue;
    const float4 w = kEarly ? weight[k] : weight_of(k);
    reinterpret_cast<uint2*>(a.out + at)[piece] =
        make_uint2(pack(x[k].x * inverse * w.x, x[k].y * inverse * w.y),
                   pack(x[k].z * inverse * w.z, x[k].w * inverse * w.w));
  }
}

// Columns up to 32768.
template <bool kAdd>
Status launch_norm(const NormArguments& a, int64_t rows, void* stream) {
  if (rows == 0) return {};
  const int pieces = a.columns / 4, each = pieces > 4096 ? 8 : pieces > 2048 ? 4 : 2;
  const int threads = ((pieces + each - 1) / each + 31) / 32 * 32;
  const auto kernel = each == 2   ? norm_kernel<kAdd, 2>
                      : each == 4 ? norm_kernel<kAdd, 4>
                                  : norm_kernel<kAdd, 8>;
  kernel<<<static_cast<unsigned>(rows), threads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  return status_of(cudaGetLastError(), "launching a norm");
}

bool fits(int64_t rows, int columns) {
  return rows >= 0 && rows <= 0x7fffffff && columns >= 4 && columns <= 32768 && columns % 4 == 0;
}
constexpr Status kShape{"cuda::rms_norm: columns are multiples of 4 up to 32768, rows fewer than 2^31"};

}  // namespace

Status rms_norm(const float* x, const float* weight, double eps, int64_t rows, int columns, void* out,
                float* inverse_power, void* stream) {
  if (!fits(rows, columns)) return kShape;
  if (!x || !weight || !out) return {"cuda::rms_norm: x, weight and out must be given"};
  return launch_norm<false>({x, nullptr, nullptr, 0, weight, eps, 1.0 / columns, columns,
                             static_cast<uint16_t*>(out), inverse_power},
                            rows, stream);
}

Status add_and_norm(float* hidden, const void* update, float scale, const float* weight, double eps,
                    int64_t rows, int columns, void* out, float* inverse_power, void* stream) {
  if (!fits(rows, columns)) return kShape;
  if (!hidden || !update || (out && !weight))
    return {"cuda::add_and_norm: hidden, update and, with out, weight must be given"};
  return launch_norm<true>({hidden, hidden, static_cast<const uint16_t*>(update), scale, weight, eps,
                            1.0 / columns, columns, static_cast<uint16_t*>(out), inverse_power},
                           rows, stream);
}

}  // namespace oscar::cuda
