// The search of kernels/simd/codebook.inl: float32 scores |c|^2 / 2 - c.x, and double arithmetic where rounding might
// decide. A thread has kRows rows in registers, and all threads of a block look at the same word of a tile of words in
// shared memory. Channels are padded with zeros, which change neither scores nor distances.
#include <algorithm>
#include <bit>

#include "kernels/codebook_device.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/status.cuh"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 128, kTileFloats = 8192;  // of a tile, half norms among them
constexpr float kFar = 3e38f;
constexpr int rows_of(int padded) {
  return padded <= 4 ? 8 : padded <= 8 ? 4 : padded <= 16 ? 2 : 1;
}
constexpr int tile_words(int padded) {
  return kTileFloats / (padded + 1);
}

// One term after the other, none of it fused.
template <int kPadded>
OSCAR_DEVICE double distance_to(const float (&x)[kPadded], const float* word) {
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kPadded; ++i) {
    const double difference = static_cast<double>(x[i]) - static_cast<double>(word[i]);
    sum = __dadd_rn(sum, __dmul_rn(difference, difference));
  }
  return sum;
}
template <int kPadded>
OSCAR_DEVICE float score_of(const float (&x)[kPadded], const float* word, float half_norm) {
  float score = half_norm;
#pragma unroll
  for (int i = 0; i < kPadded; ++i) score = fmaf(-word[i], x[i], score);
  return score;
}

template <int kPadded>
__global__ void __launch_bounds__(kThreads) nearest(const __grid_constant__ CodewordBatch a) {
  constexpr int kRows = rows_of(kPadded), kWords = tile_words(kPadded);
  __shared__ __align__(16) float words[kWords * kPadded];
  __shared__ float half_norms[kWords];
  const float* const rows = a.rows + a.group[blockIdx.y] * a.n * a.g;
  const float* const book = a.words + blockIdx.y * int64_t{a.count} * a.g;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kRows;
  const auto load_tile = [&](int tile) {
    __syncthreads();
    const int used = min(kWords, a.count - tile);
    for (int n = threadIdx.x; n < used * kPadded; n += kThreads) {
      const int c = n / kPadded, i = n % kPadded;
      words[n] = i < a.g ? book[int64_t{tile + c} * a.g + i] : 0.f;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < used; c += kThreads) {
      double norm = 0;
      for (int i = 0; i < kPadded; ++i)
        norm += static_cast<double>(words[c * kPadded + i]) * words[c * kPadded + i];
      half_norms[c] = static_cast<float>(norm) / 2;
    }
    __syncthreads();
    return used;
  };

  float x[kRows][kPadded], best[kRows], second[kRows];
  int winner[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    best[r] = second[r] = kFar;
    winner[r] = 0;
#pragma unroll
    for (int i = 0; i < kPadded; ++i)
      x[r][i] = first + r < a.n && i < a.g ? rows[(first + r) * a.g + i] : 0.f;
  }
  for (int tile = 0; tile < a.count; tile += kWords) {
    const int used = load_tile(tile);
#pragma unroll 2
    for (int c = 0; c < used; ++c) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float score = score_of<kPadded>(x[r], words + c * kPadded, half_norms[c]);
        second[r] = fminf(second[r], fmaxf(score, best[r]));
        winner[r] = score < best[r] ? tile + c : winner[r];
        best[r] = fminf(best[r], score);
      }
    }
  }
  // Scores of words that are no farther than the winner: see bound_close() in kernels/simd/codebook.inl.
  float close[kRows];
  bool open = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float norm = 0;
#pragma unroll
    for (int i = 0; i < kPadded; ++i) norm = fmaf(x[r][i], x[r][i], norm);
    const float error = 1.1f * 1.1920929e-7f * static_cast<float>(a.g + 3);
    close[r] = best[r] + (error * (4.2f * (norm + best[r]) + 0.5f * norm) + 1e-36f);
    if (second[r] > close[r]) {
      close[r] = -kFar;  // decided
    } else {
      winner[r] = 0;  // a NaN's
      best[r] = kFar;
      open = true;
    }
  }
  if (__syncthreads_or(open)) {
    double least[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) least[r] = INFINITY;
    for (int tile = 0; tile < a.count; tile += kWords) {
      const int used = a.count > kWords ? load_tile(tile) : a.count;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (close[r] == -kFar) continue;
        for (int c = 0; c < used; ++c) {
          if (!(score_of<kPadded>(x[r], words + c * kPadded, half_norms[c]) <= close[r])) continue;
          const double distance = distance_to<kPadded>(x[r], words + c * kPadded);
          if (!(distance < least[r])) continue;
          least[r] = distance;
          winner[r] = tile + c;
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= a.n) break;
    float word[kPadded];
#pragma unroll
    for (int i = 0; i < kPadded; ++i) word[i] = i < a.g ? book[int64_t{winner[r]} * a.g + i] : 0.f;
    const int64_t to = blockIdx.y * a.n + first + r;
    a.index[to] = static_cast<uint16_t>(winner[r]);
    a.distance[to] = static_cast<float>(distance_to<kPadded>(x[r], word));
  }
}

template <int kPadded>
cudaError_t launch(const CodewordBatch& a, cudaStream_t stream) {
  constexpr int64_t kBlock = kThreads * rows_of(kPadded);
  nearest<kPadded>
      <<<dim3(static_cast<unsigned>((a.n + kBlock - 1) / kBlock), a.searches), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

Status nearest_codewords(const CodewordBatch& batch, void* stream) {
  if (batch.g < 1 || batch.g > 64) return {"cuda::nearest_codewords: g must be in [1, 64]"};
  if (batch.count < 1 || batch.count > 65536) return {"cuda::nearest_codewords: count must be in [1, 65536]"};
  if (batch.n < 0 || batch.n > int64_t{1} << 36) return {"cuda::nearest_codewords: n must be in [0, 2^36]"};
  if (batch.searches < 0 || batch.searches > 65535)
    return {"cuda::nearest_codewords: at most 65535 searches at a time"};
  if (batch.n == 0 || batch.searches == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  const auto launched = [&] {
    switch (std::bit_ceil(static_cast<unsigned>(batch.g))) {
      case 1:
        return launch<1>(batch, on);
      case 2:
        return launch<2>(batch, on);
      case 4:
        return launch<4>(batch, on);
      case 8:
        return launch<8>(batch, on);
      case 16:
        return launch<16>(batch, on);
      case 32:
        return launch<32>(batch, on);
      default:
        return launch<64>(batch, on);
    }
  };
  return status_of(launched(), "searching codewords");
}

}  // namespace oscar::cuda
