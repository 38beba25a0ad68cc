// The bfloat16 tokens of a segment, the windows that a server keeps exact: 16 at a time, both products on the
// matrix unit.
#pragma once
#include "kernels/cuda/attention_state.cuh"

namespace oscar::cuda {

struct ExactRows {
  const uint16_t* k;  // of this KV head: row of slot s at s * stride
  const uint16_t* v;
  const int32_t* slots;
  int64_t stride;
  int first, end;  // entries of `slots`
};
// Query rows of one KV head: q of head j begins at j * D.
struct QueryRows {
  const void* q;
  bool bf16;
  int heads;      // that exist
  float scale;    // * log2 e
  float softcap;  // * log2 e; 0: none
};
// Two neighbouring channels from an even one on; zeros for a head that does not exist.
OSCAR_DEVICE float2 query_pair(const QueryRows& q, int head, int64_t at) {
  if (head >= q.heads) return make_float2(0.f, 0.f);
  if (!q.bf16) return *reinterpret_cast<const float2*>(static_cast<const float*>(q.q) + at);
  return __bfloat1622float2(
      *reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(q.q) + at));
}
// x[i] = four neighbouring channels from at(i) on, a multiple of four. All loads are under way before the
// first is used.
template <int kCount, class At>
OSCAR_DEVICE void query_fours(const QueryRows& q, int head, At&& at, float4 (&x)[kCount]) {
  const int row = min(head, q.heads - 1);
  if (q.bf16) {
    uint2 raw[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      raw[i] = __ldg(reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(q.q) + at(row, i)));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float2 a = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(raw[i].x)),
                   b = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(raw[i].y));
      x[i] = make_float4(a.x, a.y, b.x, b.y);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(q.q) + at(row, i)));
    }
  }
  if (head >= q.heads) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}
OSCAR_DEVICE float capped(float x, float cap) {
  return cap > 0.f ? cap * tanhf(x / cap) : x;
}

// x as two bfloat16, hi + lo, 2^-17 apart; limb 0 is hi.
OSCAR_DEVICE float limb_of(float x, int limb) {
  const float hi = __bfloat162float(__float2bfloat16(x));
  return limb ? x - hi : hi;
}
OSCAR_DEVICE unsigned bf16_pair(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const unsigned&>(v);
}

inline constexpr int kExactTokens = 16;
// A row of 2 D bytes and 16 more, so that eight rows lie in different banks.
template <int D>
inline constexpr int kExactPitch = 2 * D + 16;

// Tiles `warp`, `warp` + `warps`, … of the rows, one after the other. buffer: 32 kExactPitch bytes of shared
// memory of the warp's own, 16-byte aligned. The state must be past finish_codes().
template <int D, int NT, int G>
OSCAR_DEVICE void attend_exact(AttentionState<D, NT, G>& state, const ExactRows& rows, const QueryRows& query,
                               int warp, int warps, uint32_t buffer, int lane) {
  constexpr int kPitch = kExactPitch<D>, kChunks = D / 8;
  const int g = lane >> 2, t = lane & 3;
  const uint32_t vs = buffer + kExactTokens * kPitch;
  for (int begin = rows.first + kExactTokens * warp; begin < rows.end; begin += kExactTokens * warps) {
    const int count = min(kExactTokens, rows.end - begin);
    __syncwarp();
    // Beyond the end the last row once more: what p = 0 multiplies must be finite.
    for (int side = 0; side < 2; ++side) {
      for (int i = lane; i < kExactTokens * kChunks; i += 32) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int64_t slot = __ldg(rows.slots + begin + min(row, count - 1));
        copy16((side ? vs : buffer) + row * kPitch + 16 * chunk,
               (side ? rows.v : rows.k) + slot * rows.stride + 8 * chunk);
      }
      copy_commit();
    }
    copy_wait<1>();
    __syncwarp();
    float p[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int head = 4 * n + (g >> 1);
      float s[4] = {0, 0, 0, 0};
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        unsigned b[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t at = int64_t{head} * D + 16 * step + 8 * half + 2 * t;
          const float2 x = query_pair(query, head, at);
          b[half] = bf16_pair(limb_of(x.x, g & 1), limb_of(x.y, g & 1));
        }
        const uint32_t a = buffer + g * kPitch + 32 * step + 4 * t;
        product_bf16(s, load_shared(a), load_shared(a + 8 * kPitch), load_shared(a + 16),
                     load_shared(a + 8 * kPitch + 16), b[0], b[1]);
      }
      float x[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        x[r] = capped((s[2 * r] + s[2 * r + 1]) * query.scale, query.softcap);
        if (g + 8 * r >= count) x[r] = -INFINITY;
      }
      const float top = max_over_g(fmaxf(x[0], x[1]));
      state.make_room(n, top);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p[n][r] = exp2_approx(x[r] - state.m[n]);
        state.l[n] += p[n][r];
      }
    }
    copy_wait<0>();
    __syncwarp();
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      unsigned b[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = __shfl_sync(kWarp, p[n][r], 8 * t + (g >> 1)),
                    y = __shfl_sync(kWarp, p[n][r], 8 * t + 4 + (g >> 1));
        b[r] = bf16_pair(limb_of(x, g & 1), limb_of(y, g & 1));
      }
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        unsigned a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {  // rows of channels g, g + 8; tokens 2 t, 2 t + 1, then both + 8
          const uint32_t at = vs + (2 * t + 8 * (r >> 1)) * kPitch + 2 * (16 * i + 8 * (r & 1) + g);
          unsigned short x, y;
          asm volatile("ld.shared.u16 %0,[%1];" : "=h"(x) : "r"(at));
          asm volatile("ld.shared.u16 %0,[%1];" : "=h"(y) : "r"(at + kPitch));
          a[r] = x | static_cast<unsigned>(y) << 16;
        }
        float c[4] = {0, 0, 0, 0};
        product_bf16(c, a[0], a[1], a[2], a[3], b[0], b[1]);
        state.o[n][i][0] += c[0] + c[1];
        state.o[n][i][1] += c[2] + c[3];
      }
    }
  }
  __syncwarp();
}

}  // namespace oscar::cuda
