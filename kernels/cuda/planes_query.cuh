// Four query heads as operands of the products with bit planes.
#pragma once
#include "kernels/cuda/exact_rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/plane_launch.h"

namespace oscar::cuda {

struct PlaneSide {
  const float* steps;
  const uint8_t* bits;
  int planes[kPlanes];
  int pairs, singles;  // chunks
  bool norm;

  // Of place s, pairs before singles.
  OSCAR_DEVICE PlanePlace place(int s) const {
    return s < kChunkPairs * pairs ? pair_place(planes, s) : single_place(planes, s - kChunkPairs * pairs);
  }
};

// Of one head: from sums of products to logits * log2 e, what k_mean adds to them, and half the sum of the
// products with codes that are as high as they can be, since codes count from 0 and levels from the middle.
struct PlaneQuery {
  float unit, shift;
  int middle;
};

OSCAR_DEVICE float query_value(const QueryRows& q, int head, int channel, int dim) {
  const int64_t at = int64_t{head} * dim + channel;
  return q.bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(q.q)[at])
                : static_cast<const float*>(q.q)[at];
}

// One warp makes one head's: q step 2^plane in 16-bit fixed point at every place, relative to the largest.
// A slice is 32 places, of pairs one chunk, of singles half of one; the table holds operand b of each: 8 bytes
// of every lane, column g = (head g / 2, limb g % 2; limb 0 is high). The second half of a slice of singles
// stands one bit higher in its byte, so its query is half as large.
template <int D>
OSCAR_DEVICE PlaneQuery make_plane_query(const PlaneSide& side, const QueryRows& rows, const float* k_mean,
                                         int kv_head, int head, uint8_t* table, int lane) {
  constexpr int kSlices = D / 16;
  const int slices = side.pairs + 2 * side.singles;
  const float* steps = side.steps + kv_head * D;
  const uint8_t* bits = side.bits + kv_head * D;
  const bool exists = head < rows.heads;
  float x[kSlices], largest = 1e-20f, mean = 0.f;
  int most[kSlices];
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    const bool pair = i < side.pairs;
    const PlanePlace at = side.place(32 * i + lane);
    x[i] = 0.f;
    most[i] = 0;
    if (i < slices && at.channel >= 0 && exists) {
      const int own = min(max(bits[at.channel] - at.plane, 0), pair ? 2 : 1);
      const float weight = static_cast<float>(1 << at.plane) * (!pair && lane >= 16 ? 0.5f : 1.f);
      if (own > 0) x[i] = query_value(rows, head, at.channel, D) * steps[at.channel] * weight;
      most[i] = ((1 << own) - 1) * (!pair && lane >= 16 ? 2 : 1);
    }
    largest = fmaxf(largest, fabsf(x[i]));
  }
  if (k_mean && exists) {
    for (int c = lane; c < D; c += 32) mean = fmaf(query_value(rows, head, c, D), k_mean[c], mean);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, step));
    mean += __shfl_xor_sync(kWarp, mean, step);
  }
  const float fixed = 32000.f / largest;
  const int own_byte = 8 * (lane % 16 / 4) + 4 * (lane / 16) + lane % 4;
  int middle = 0;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    const int q = __float2int_rn(x[i] * fixed), high = (q + 128) >> 8;
    middle += q * most[i];
    if (i < slices) {
      uint8_t* to = table + 256 * i + 64 * head + own_byte;
      to[0] = static_cast<uint8_t>(high);
      to[32] = static_cast<uint8_t>(q - (high << 8));
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) middle += __shfl_xor_sync(kWarp, middle, step);
  return {rows.scale / fixed, rows.scale * mean, middle >> 1};
}

}  // namespace oscar::cuda
