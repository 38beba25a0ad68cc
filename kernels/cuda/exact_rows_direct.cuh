// The bfloat16 tokens of a segment for a kernel whose shared memory is full: straight from global memory to
// the operands of the matrix unit. Which channel an operand's k, or row, stands for is free, so every load
// can be 16 bytes of a row.
#pragma once
#include "kernels/cuda/decode_vector.cuh"

namespace oscar::cuda {

inline constexpr int kDirectTokens = 16;

// Channel of state.o[0][i][r] while exact rows are added.
OSCAR_DEVICE int direct_channel(int i, int r, int g) {
  return 64 * (i / 4) + 8 * g + 2 * (i % 4) + r;
}

// Tiles `warp`, `warp` + `warps`, ... of 16 rows.
template <int D>
OSCAR_DEVICE void attend_exact_direct(AttentionState<D, 1, 1>& state, const ExactRows& rows,
                                      const QueryRows& query, int warp, int warps, int lane) {
  const int g = lane >> 2, t = lane & 3;
  for (int begin = rows.first + kDirectTokens * warp; begin < rows.end; begin += kDirectTokens * warps) {
    const int count = min(kDirectTokens, rows.end - begin);
    // Beyond the end the last row once more: what p = 0 multiplies must be finite.
    const auto row = [&](const uint16_t* side, int token) {
      return side + __ldg(rows.slots + begin + min(token, count - 1)) * rows.stride;
    };
    const uint16_t *k0 = row(rows.k, g) + 8 * t, *k1 = row(rows.k, g + 8) + 8 * t;
    float s[4] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < D / 32; ++step) {  // of k: channels 8 t + 0..3, then 8 t + 4..7
      const uint4 a = load_stream4(k0 + 32 * step), b = load_stream4(k1 + 32 * step);
      float4 x[1][2];
      query_eights<D, 1>(query, g >> 1, 32 * step + 8 * t, x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 q = x[0][half];
        const unsigned q0 = bf16_pair(limb_of(q.x, g & 1), limb_of(q.y, g & 1)),
                       q1 = bf16_pair(limb_of(q.z, g & 1), limb_of(q.w, g & 1));
        product_bf16(s, half ? a.z : a.x, half ? b.z : b.x, half ? a.w : a.y, half ? b.w : b.y, q0, q1);
      }
    }
    float p[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      p[r] = capped((s[2 * r] + s[2 * r + 1]) * query.scale, query.softcap);
      if (g + 8 * r >= count) p[r] = -INFINITY;
    }
    state.make_room(0, max_over_g(fmaxf(p[0], p[1])));
    unsigned weights[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      p[r] = exp2_approx(p[r] - state.m[0]);
      state.l[0] += p[r];
      const float x = __shfl_sync(kWarp, p[r], 8 * t + (g >> 1)),
                  y = __shfl_sync(kWarp, p[r], 8 * t + 4 + (g >> 1));
      weights[r] = bf16_pair(limb_of(x, g & 1), limb_of(y, g & 1));
    }
#pragma unroll
    for (int block = 0; block < D / 64; ++block) {
      uint4 v[4];  // tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v[i] = load_stream4(row(rows.v, 2 * t + i % 2 + 8 * (i / 2)) + 64 * block + 8 * g);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const unsigned a = component(v[0], w), b = component(v[1], w), c = component(v[2], w),
                       d = component(v[3], w);
        float sum[4] = {0, 0, 0, 0};
        product_bf16(sum, permute_bytes(a, b, 0x5410), permute_bytes(a, b, 0x7632),
                     permute_bytes(c, d, 0x5410), permute_bytes(c, d, 0x7632), weights[0], weights[1]);
        state.o[0][4 * block + w][0] += sum[0] + sum[1];
        state.o[0][4 * block + w][1] += sum[2] + sum[3];
      }
    }
  }
}

}  // namespace oscar::cuda
