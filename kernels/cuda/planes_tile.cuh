// Attention over 64 tokens whose keys and values are bit planes (kernels/plane_pages.h), by one warp, on the
// integer matrix unit.
//
// As with INT2 (int2_tile.cuh) codes stay where they stand: under a mask the bits of a pair, or a single bit,
// are bytes of operand a, and the eight columns of b are 4 query heads x {high, low} byte of 16-bit fixed
// point. Keys: q times step and the weight of the plane, so that all places add up. Values: weights of
// tokens, each place a sum of its own, which becomes a number at the very end.
#pragma once
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/planes_query.cuh"

namespace oscar::cuda {

inline constexpr int kPlaneWeightPitch = 80;  // bytes a row of 64 weights: eight rows in different banks
inline constexpr float kLeastNorm = 5.9604645e-8f;  // what a norm of zero is read as
inline constexpr float kMostWeight = 65500.f;

// Lane = 4 g + t: of head t, the sums of places 8 f + g, f = 2 tile + r: tiles of pairs from the front, those
// of singles from the end, the last chunk first. weights: the sum of what places were weighted with.
template <int D>
struct PlaneState {
  static constexpr int kTiles = D / 8;
  float o[kTiles][2];
  float m, l, weights;

  OSCAR_DEVICE void init() {
    m = -INFINITY;
    l = weights = 0.f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) o[i][0] = o[i][1] = 0.f;
  }
  OSCAR_DEVICE void make_room(float top) {
    if (__any_sync(kWarp, top > m + kSlack)) {
      const float moved = fmaxf(top, m), f = exp2_approx(m - moved);
      m = moved;
      l *= f;
      weights *= f;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        o[i][0] *= f;
        o[i][1] *= f;
      }
    }
  }
  // From sums of places to numbers in the order of AttentionState, through 4 D floats of the warp's own. Every
  // place of a lane is of channels that only this lane has, since planes are multiples of 8 channels.
  OSCAR_DEVICE void finish(AttentionState<D, 1, 1>& state, const PlaneSide& side, int kv_head, float shift,
                           const float* v_mean, float* own, int lane) const {
    const int g = lane >> 2, t = lane & 3;
    float* row = own + t * D;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < D / 8; ++i) row[8 * i + g] = 0.f;
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int tile = i / 2, back = kTiles - 1 - tile;
      if (i < 4 * side.pairs) {
        constexpr float kWeight[4] = {1.f, 0.25f, 0.0625f, 0.015625f};
        add(row, pair_place(side.planes, 8 * i + g), o[tile][i % 2] * kWeight[i % 4]);
      } else if (back < 4 * side.singles) {
        constexpr float kWeight[8] = {1.f, 0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f};
        const int f = 2 * (3 - back % 4) + i % 2;
        add(row, single_place(side.planes, kChunkSingles * (back / 4) + 8 * f + g),
            o[tile][i % 2] * kWeight[f]);
      }
    }
    state.m[0] = m + shift;
    state.l[0] = l;
    state.low[0][0] = 0.f;
    const float all = sum_over_g(weights), mass = v_mean ? sum_over_g(l) : 0.f;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      const int channel = 8 * i + g;
      const float middle = 0.5f * static_cast<float>((1 << side.bits[kv_head * D + channel]) - 1);
      float x = fmaf(-middle, all, row[channel]) * side.steps[kv_head * D + channel];
      if (v_mean) x = fmaf(mass, v_mean[channel], x);
      state.o[0][i / 2][i % 2] = x;
    }
    __syncwarp();
  }

 private:
  static OSCAR_DEVICE void add(float* row, const PlanePlace& at, float x) {
    if (at.channel >= 0) row[at.channel] = fmaf(x, static_cast<float>(1 << at.plane), row[at.channel]);
  }
};

// Norms of tokens 8 g + 0..7.
OSCAR_DEVICE void plane_norms(uint32_t from, float (&x)[8], int lane) {
  const uint4 v = load_shared4(from + 16 * (lane >> 2));
  const unsigned w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __half22float2(reinterpret_cast<const __half2&>(w[i]));
    x[2 * i] = f.x;
    x[2 * i + 1] = f.y;
  }
}

// s[i] += codes . query, of tokens 8 g + 2 i and 8 g + 2 i + 1.
OSCAR_DEVICE void plane_products(const PlaneSide& k, uint32_t codes, uint32_t queries, int (&s)[4][4],
                                 int lane) {
  codes += 16 * lane;
  queries += 8 * lane;
#pragma unroll 2
  for (int c = 0; c < k.pairs; ++c, codes += kPlaneChunk, queries += 256) {
    const uint4 w = load_shared4(codes);
    const uint2 q = load_shared2(queries);
    const unsigned words[4] = {w.x, w.y, w.z, w.w};
    constexpr unsigned kPair = 0x03030303u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      product_us(s[i], words[i] & kPair, (words[i] >> 4) & kPair, (words[i] >> 2) & kPair,
                 (words[i] >> 6) & kPair, q.x, q.y);
    }
  }
#pragma unroll 1
  for (int c = 0; c < k.singles; ++c, codes += kPlaneChunk, queries += 512) {
    const uint4 w = load_shared4(codes);
    const uint2 low = load_shared2(queries), high = load_shared2(queries + 256);
    const unsigned words[4] = {w.x, w.y, w.z, w.w};
    constexpr unsigned kFirst = 0x01010101u, kSecond = 0x02020202u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned a = words[i], b = a >> 4;
      product_us(s[i], a & kFirst, b & kFirst, a & kSecond, b & kSecond, low.x, low.y);
      product_us(s[i], (a >> 2) & kFirst, (b >> 2) & kFirst, (a >> 2) & kSecond, (b >> 2) & kSecond, high.x,
                 high.y);
    }
  }
}

// o += unit * codes . weights for 16 places: those of `first` and of `second`.
OSCAR_DEVICE void add_plane_tile(float (&o)[2], const uint4& codes, unsigned first, unsigned second,
                                 const uint4& weights, float unit) {
  int c[4] = {0, 0, 0, 0};
  product_uu(c, codes.x & first, codes.x & second, codes.y & first, codes.y & second, weights.x, weights.y);
  product_uu(c, codes.z & first, codes.z & second, codes.w & first, codes.w & second, weights.z, weights.w);
  o[0] = fmaf(static_cast<float>(c[0] * 256 + c[1]), unit, o[0]);
  o[1] = fmaf(static_cast<float>(c[2] * 256 + c[3]), unit, o[1]);
}

// Tokens [first, end) of the page count where kPartial; there too logits may be capped. page, queries,
// weights: shared memory, the last 8 rows of kPlaneWeightPitch of the warp's own.
template <int D, bool kPartial>
OSCAR_DEVICE void attend_planes(const PlaneSide& k, const PlaneSide& v, uint32_t page, int key_bytes,
                                uint32_t queries, const PlaneQuery& query, PlaneState<D>& state,
                                uint32_t weights, int lane, int first, int end, float softcap) {
  const int g = lane >> 2, t = lane & 3;
  float x[8];
  {
    int s[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i][0] = s[i][2] = 0;
      s[i][1] = s[i][3] = -query.middle;
    }
    plane_products(k, page, queries, s, lane);
#pragma unroll
    for (int r = 0; r < 8; ++r)
      x[r] = static_cast<float>(s[r >> 1][2 * (r & 1)] * 256 + s[r >> 1][2 * (r & 1) + 1]);
  }
  if (k.norm) {
    float norm[8];
    plane_norms(page + key_bytes - 128, norm, lane);
#pragma unroll
    for (int r = 0; r < 8; ++r) x[r] *= norm[r];
  }
  float unit = query.unit;
  const auto hidden = [&](int r) { return kPartial && (8 * g + r < first || 8 * g + r >= end); };
  if (kPartial) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      x[r] *= unit;
      if (softcap > 0.f) x[r] = capped(x[r] + query.shift, softcap);
      if (hidden(r)) x[r] = -INFINITY;
    }
    unit = 1.f;
  }
  const uint32_t values = page + key_bytes;
  const uint32_t value_norms = values + kPlaneChunk * (v.pairs + v.singles);
  float over[8];  // 1 / norm
  if (v.norm) {
    plane_norms(value_norms, over, lane);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const float norm = hidden(r) ? 1.f : fmaxf(over[r], kLeastNorm);
      x[r] = fmaf(x[r], unit, log2_approx(norm));
      over[r] = reciprocal_approx(norm);
    }
    unit = 1.f;
  }
  // Weights p * norm are fixed point relative to the largest of the page, so that 16 bits go as far as they
  // can. What the codes' middle is taken times is the sum of the rounded ones: then rounding moves a weight,
  // but not what all of them have in common.
  const float top = max_over_g(fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])),
                                     fmaxf(fmaxf(x[4], x[5]), fmaxf(x[6], x[7])))) *
                    unit;
  state.make_room(top);
  const float to_state = exp2_approx(top - state.m) * (1.f / kMostWeight);
  float sum = 0.f, mass = 0.f;
  unsigned w[8];
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const float weight = exp2_approx(fmaf(x[r], unit, -top)), fixed = fmaf(weight, kMostWeight, 8388608.f);
    w[r] = __float_as_uint(fixed);
    sum += fixed - 8388608.f;
    if (v.norm) mass = fmaf(weight, over[r], mass);
  }
  state.weights = fmaf(to_state, sum, state.weights);
  state.l = fmaf(to_state, v.norm ? mass * kMostWeight : sum, state.l);
  const unsigned a0 = __byte_perm(w[0], w[1], 0x5140), a1 = __byte_perm(w[2], w[3], 0x5140),
                 a2 = __byte_perm(w[4], w[5], 0x5140), a3 = __byte_perm(w[6], w[7], 0x5140);
  const uint32_t row = weights + 2 * t * kPlaneWeightPitch + 8 * g;
  store_shared2(row, __byte_perm(a0, a1, 0x7632), __byte_perm(a2, a3, 0x7632));
  store_shared2(row + kPlaneWeightPitch, __byte_perm(a0, a1, 0x5410), __byte_perm(a2, a3, 0x5410));
  __syncwarp();
  const uint4 b = load_shared4(weights + g * kPlaneWeightPitch + 16 * t);
#pragma unroll
  for (int c = 0; c < D / 16; ++c) {
    if (c >= v.pairs) break;
    const uint4 codes = load_shared4(values + kPlaneChunk * c + 16 * lane);
    add_plane_tile(state.o[2 * c], codes, 0x03030303u, 0x0c0c0c0cu, b, to_state);
    add_plane_tile(state.o[2 * c + 1], codes, 0x30303030u, 0xc0c0c0c0u, b, to_state);
  }
#pragma unroll
  for (int c = 0; c < D / 32; ++c) {
    if (c >= v.singles) break;
    const uint4 codes = load_shared4(values + kPlaneChunk * (v.pairs + c) + 16 * lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      add_plane_tile(state.o[PlaneState<D>::kTiles - 4 * (c + 1) + i], codes, 0x01010101u << (2 * i),
                     0x02020202u << (2 * i), b, to_state);
    }
  }
}

}  // namespace oscar::cuda
