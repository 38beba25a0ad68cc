// Internal to the decode over vector codes: what its kernels are given.
#pragma once
#include "kernels/cuda/exact_rows.cuh"
#include "kernels/cuda/launch.h"

namespace oscar::cuda {

struct VectorArguments {
  DecodeInputs in;
  DecodeOutputs out;
  PlanView plan;
  Partials parts;
  int kv_heads, group;
  int page_bytes, key_bytes, block_bytes;  // of a page, of a block of keys, of keys and values
  bool k_norm, v_norm;
};

// Shared memory beside the tables of words.
constexpr int vector_warp_bytes(int dim) {
  return 16 * 16 * (dim + 2) + dim + 896;
}

OSCAR_DEVICE unsigned component(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Eight neighbouring channels of each of kCount heads; all loads are under way before the first is used.
template <int D, int kCount>
OSCAR_DEVICE void query_eights(const QueryRows& rows, int head, int channel, float4 (&x)[kCount][2]) {
  const auto at = [&](int i) { return min(head + i, rows.heads - 1) * D + channel; };
  if (rows.bf16) {
    uint4 raw[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      raw[i] = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(rows.q) + at(i)));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // A bfloat16 is the upper half of a float.
      x[i][0] = make_float4(__uint_as_float(raw[i].x << 16), __uint_as_float(raw[i].x & 0xffff0000u),
                            __uint_as_float(raw[i].y << 16), __uint_as_float(raw[i].y & 0xffff0000u));
      x[i][1] = make_float4(__uint_as_float(raw[i].z << 16), __uint_as_float(raw[i].z & 0xffff0000u),
                            __uint_as_float(raw[i].w << 16), __uint_as_float(raw[i].w & 0xffff0000u));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i)
      x[i / 2][i % 2] =
          __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(rows.q) + at(i / 2)) + i % 2);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (head + i >= rows.heads) x[i][0] = x[i][1] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// What a mean key adds to the logits of head t, in powers of two.
template <int D>
OSCAR_DEVICE float mean_logit(const QueryRows& rows, const float* k_mean, int lane) {
  const auto channel = [&](int i) { return 4 * (lane / 4) + 32 * i; };
  float4 q[D / 32];
  query_fours<D / 32>(
      rows, lane % 4, [&](int row, int i) { return row * D + channel(i); }, q);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const float4 mean = __ldg(reinterpret_cast<const float4*>(k_mean + channel(i)));
    sum = fmaf(q[i].x, mean.x, fmaf(q[i].y, mean.y, fmaf(q[i].z, mean.z, fmaf(q[i].w, mean.w, sum))));
  }
  return rows.scale * sum_over_g(sum);
}

}  // namespace oscar::cuda
