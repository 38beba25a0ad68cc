// The bfloat16 tokens of a segment, the windows that a server keeps exact: 8 at a time, both products on the
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

inline constexpr int kExactTokens = 8;
// A row of 2 D bytes and 16 more, so that eight rows lie in different banks; a tile is its keys, then its
// values.
template <int D>
inline constexpr int kExactPitch = 2 * D + 16;
template <int D>
inline constexpr int kExactTileBytes = 2 * kExactTokens* kExactPitch<D>;

// A warp's own tiles of a segment's rows: from rows.first on, every `step` rows. Tile j is brought in as one
// group of copies (an empty one beyond the last), in the order of j; begin() before.
template <int D>
struct ExactTiles {
  int slot = 0;  // of row lane % 8 of tile j + lane / 8, j a multiple of 4

  OSCAR_DEVICE void begin(const ExactRows& rows, int step, int lane) { fetch(rows, step, 0, lane); }
  OSCAR_DEVICE void copy(const ExactRows& rows, int step, int j, uint32_t to, int lane) {
    constexpr int kChunks = D / 8;
    if (rows.first + j * step < rows.end) {
#pragma unroll 4
      for (int i = lane; i < 2 * kExactTokens * kChunks; i += 32) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int64_t from =
            __shfl_sync(kWarp, slot, j % 4 * kExactTokens + row % kExactTokens) * rows.stride;
        copy16(to + row * kExactPitch<D> + 16 * chunk,
               (row < kExactTokens ? rows.k : rows.v) + from + 8 * chunk);
      }
      if (j % 4 == 3) fetch(rows, step, j + 1, lane);
    }
    copy_commit();
  }

 private:
  // Beyond the end the last row once more: what p = 0 multiplies must be finite.
  OSCAR_DEVICE void fetch(const ExactRows& rows, int step, int j, int lane) {
    if (rows.first + j * step >= rows.end) return;
    const int at = rows.first + (j + lane / kExactTokens) * step + lane % kExactTokens;
    slot = rows.slots[min(at, rows.end - 1)];
  }
};

// Operand b of the products with keys: column g = (head 4 n + g / 2, limb g % 2).
template <int D, int NT>
struct ExactQuery {
  unsigned b[NT][D / 16][2];

  OSCAR_DEVICE ExactQuery(const QueryRows& rows, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int head = 4 * n + (g >> 1);
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        const float2 x = query_pair(rows, head, int64_t{head} * D + 8 * i + 2 * t);
        b[n][i / 2][i % 2] = bf16_pair(limb_of(x.x, g & 1), limb_of(x.y, g & 1));
      }
    }
  }
};

// `count` tokens of a tile in shared memory. The state must be past finish_codes().
template <int D, int NT, int G>
OSCAR_DEVICE void attend_exact_tile(AttentionState<D, NT, G>& state, const ExactQuery<D, NT>& q,
                                    const QueryRows& query, uint32_t tile, int count, int lane) {
  const int g = lane >> 2, t = lane & 3;
  const uint32_t row = tile + lane % 8 * kExactPitch<D> + 16 * (lane / 8);
  float s[NT][4];
#pragma unroll
  for (int n = 0; n < NT; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    unsigned k[4];
    load_matrices<false>(k, row + 64 * i);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      product_bf16(s[n], k[0], 0, k[1], 0, q.b[n][2 * i][0], q.b[n][2 * i][1]);
      product_bf16(s[n], k[2], 0, k[3], 0, q.b[n][2 * i + 1][0], q.b[n][2 * i + 1][1]);
    }
  }
  unsigned weights[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    float x = capped((s[n][0] + s[n][1]) * query.scale, query.softcap);
    if (g >= count) x = -INFINITY;
    state.make_room(n, max_over_g(x));
    const float p = exp2_approx(x - state.m[n]);
    state.l[n] += p;
    const float a = __shfl_sync(kWarp, p, 8 * t + (g >> 1)), b = __shfl_sync(kWarp, p, 8 * t + 4 + (g >> 1));
    weights[n] = bf16_pair(limb_of(a, g & 1), limb_of(b, g & 1));
  }
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    unsigned v[4];
    load_matrices<true>(v, row + kExactTokens * kExactPitch<D> + 64 * i);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float(&o)[2] = state.o[n][2 * i + half];
        float c[4] = {o[0], 0.f, o[1], 0.f};
        product_bf16_k8(c, v[2 * half], v[2 * half + 1], weights[n]);
        o[0] = c[0] + c[1];
        o[1] = c[2] + c[3];
      }
    }
  }
}

// All of a warp's tiles, of which the first kAhead are under way; at(j): where tile j is, in turns kAhead
// places of kExactTileBytes that are a multiple of 16.
template <int kAhead, int D, int NT, int G, class At>
OSCAR_DEVICE void attend_exact(AttentionState<D, NT, G>& state, ExactTiles<D>& tiles, const ExactRows& rows,
                               int step, const QueryRows& query, At&& at, int lane) {
  const ExactQuery<D, NT> q(query, lane);
  for (int j = 0; rows.first + j * step < rows.end; ++j) {
    copy_wait<kAhead - 1>();
    __syncwarp();
    attend_exact_tile(state, q, query, at(j), min(kExactTokens, rows.end - rows.first - j * step), lane);
    __syncwarp();
    tiles.copy(rows, step, j + kAhead, at(j), lane);
  }
}

}  // namespace oscar::cuda
