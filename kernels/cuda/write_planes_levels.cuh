// The nearest level of every channel: in float32 wherever that cannot be wrong, else as kernels/codebook.h
// says.
#pragma once
#include "kernels/cuda/write_planes.cuh"

namespace oscar::cuda {

// Of n = 2^b - 1 steps. A code is n (x / (n step) + 1/2), rounded, if what is rounded away is at most kClear.
// In units of a step, where |x| <= n step / 2, n <= 15: x / norm and the slope are 1.5 * 2^-22 off together,
// of n / 2 at most; the sum with 1/2 is rounded by 2^-25, of n; levels are rounded by n 2^-25. In all less
// than 2^-18.
struct Level {
  float slope, n;
};
inline constexpr float kClear = 0.5f - 0x1p-17f;

OSCAR_DEVICE Level level_of(float step, int bits) {
  const float n = static_cast<float>((1 << bits) - 1), range = __fmul_rn(n, step);
  // What float32 is not good for has no slope: all its elements are half a step from a level.
  return {range > 0x1p-100f && range < 0x1p100f ? __fdiv_rn(1.f, range) : 0.f, n};
}

// The levels of a head's channels in shared memory: half a piece each, of channel 32 m + 8 t + i that of
// piece [m][i / 2][t].
template <int D>
struct LevelTable {
  static constexpr int kBytes = 8 * D;
  const float4* pieces;

  static OSCAR_DEVICE void fill(float4* to, const PlaneLevels& levels, int head) {
    for (int c = threadIdx.x; c < D; c += blockDim.x) {
      const int m = c / 32, t = c / 8 % 4, i = c % 8;
      const int bits = min(levels.bits[head * D + c], kPlanes);
      const Level level = level_of(levels.steps[head * D + c], bits);
      reinterpret_cast<float2*>(to + (4 * m + i / 2) * 4 + t)[i % 2] = make_float2(level.slope, level.n);
    }
  }
  // The largest |x| / norm that is certain to be near. Far away, at 2^53 steps, levels are all the same to
  // double arithmetic, and the first of them is the nearest. All lanes of the warp together.
  OSCAR_DEVICE float reach() const {
    float steepest = 0.f;
    for (int i = threadIdx.x & 31; i < D / 2; i += 32)
      steepest = fmaxf(steepest, fmaxf(pieces[i].x, pieces[i].z));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      steepest = fmaxf(steepest, __shfl_xor_sync(kWarp, steepest, distance));
    return __fdiv_rn(0x1p36f, steepest);
  }
  OSCAR_DEVICE void unit(int m, int t, float4 (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = pieces[(4 * m + i) * 4 + t];
  }
};

// Codes of x times `inverse`; clear: they are those of the nearest levels. limit: reach() of x.
OSCAR_DEVICE UnitCodes near_levels(const float (&x)[8], float inverse, float limit, const float4 (&levels)[4],
                                   bool& clear) {
  constexpr float kOne = 8388608.f;  // 2^23, so that the last bits are those of the integer
  unsigned code[8];
  float farthest = 0.f, size = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float slope = i % 2 == 0 ? levels[i / 2].x : levels[i / 2].z;
    const float n = i % 2 == 0 ? levels[i / 2].y : levels[i / 2].w;
    const float part = __saturatef(__fmaf_rn(__fmul_rn(x[i], inverse), slope, 0.5f));
    const float rounded = __fmaf_rn(part, n, kOne);
    farthest = fmaxf(farthest, fabsf(__fmaf_rn(part, n, __fsub_rn(kOne, rounded))));
    size = __fadd_rn(size, fabsf(x[i]));
    code[i] = __float_as_uint(rounded);
  }
  clear = farthest <= kClear && size <= limit;
  // What all have in common leaves the word at the top, but for the first.
  UnitCodes codes;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const unsigned* c = code + 4 * k;
    codes.word[k] = c[3] * 0x1000000u + c[2] * 0x10000u + c[1] * 0x100u + c[0] - Affine::kExcess;
  }
  return codes;
}

// Of the channels from where steps and bits point. Rare: one element at a time, x moving up, so that the loop
// need not be unrolled.
OSCAR_DEVICE UnitCodes nearest_levels(float (&x)[8], float norm, const float* steps, const uint8_t* bits) {
  UnitCodes codes = {{0, 0}};
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    const int count = 1 << min(bits[i], kPlanes);
    const double row = __fdiv_rn(x[0], norm);
    const float step = steps[i], middle = static_cast<float>(count - 1) / 2;
    double least = INFINITY;
    unsigned winner = 0;
#pragma unroll 1
    for (int c = 0; c < count; ++c) {
      const double difference = row - __fmul_rn(static_cast<float>(c) - middle, step);
      const double distance = __dmul_rn(difference, difference);
      if (distance < least) {
        least = distance;
        winner = c;
      }
    }
    codes.word[0] = __funnelshift_r(codes.word[0], codes.word[1], 8);
    codes.word[1] = __funnelshift_r(codes.word[1], winner, 8);
#pragma unroll
    for (int j = 0; j < 7; ++j) x[j] = x[j + 1];
  }
  return codes;
}

}  // namespace oscar::cuda
