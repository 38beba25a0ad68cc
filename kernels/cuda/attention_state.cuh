// What a warp carries through its tokens for 4 NT query heads of one KV head. Lane = 4 g + t holds, of head 4
// n + t, the sums over its own tokens and the channels 32 u + 16 p + g (index 2 u + p, 0) and + 8 (index 2 u
// + p, 1) of the output.
#pragma once
#include "kernels/cuda/merge_parts.cuh"

namespace oscar::cuda {

// Exponentials are exp2(x - m) with x = logit * log2 e; m moves only when a logit exceeds it by this.
inline constexpr float kSlack = 10.f;

// Four rows begin in different banks.
template <int D>
inline constexpr int kLeftPitch = D + 8;
template <int D, int NT>
inline constexpr int kLeft = 4 * NT*(kLeftPitch<D> + 2);

template <int D, int NT, int G>
struct AttentionState {
  float o[NT][D / 16][2];
  float m[NT], l[NT], low[NT][G];  // low: sum of p times the values' minimum, a group of channels each

  OSCAR_DEVICE void init() {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      m[n] = -INFINITY;
      l[n] = 0.f;
#pragma unroll
      for (int h = 0; h < G; ++h) low[n][h] = 0.f;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) o[n][i][0] = o[n][i][1] = 0.f;
    }
  }
  // top: the largest new logit of head n, known to all lanes that share t.
  OSCAR_DEVICE void make_room(int n, float top) {
    if (__any_sync(kWarp, top > m[n] + kSlack)) {
      const float moved = fmaxf(top, m[n]), f = exp2_approx(m[n] - moved);
      m[n] = moved;
      l[n] *= f;
#pragma unroll
      for (int h = 0; h < G; ++h) low[n][h] *= f;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        o[n][i][0] *= f;
        o[n][i][1] *= f;
      }
    }
  }
  // Coded tokens are done: fields to values (fields weigh 1, 4, 16, 64), minima and the mean added, the
  // constant that k_mean adds to every coded logit made part of m. Layout says which channel and group
  // o[n][i][r] is.
  template <class Layout>
  OSCAR_DEVICE void finish_codes(int lane, const float (&shift)[NT], const float* v_mean) {
    const int g = lane >> 2;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      m[n] += shift[n];
      const float mass = v_mean ? sum_over_g(l[n]) : 0.f;
      float minimum[G];
#pragma unroll
      for (int h = 0; h < G; ++h) minimum[h] = sum_over_g(low[n][h]);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          constexpr float kWeight[4] = {1.f, 0.25f, 0.0625f, 0.015625f};
          o[n][i][r] = fmaf(o[n][i][r], kWeight[2 * (i & 1) + r], minimum[Layout::value_group(i, r)]);
          if (v_mean) o[n][i][r] = fmaf(mass, v_mean[Layout::value_channel(i, r, g)], o[n][i][r]);
        }
      }
    }
  }
  // From the channels of Layout to those of the struct's comment, through 4 NT D floats of the warp's own.
  template <class Layout>
  OSCAR_DEVICE void reorder(int lane, float* own) {
    const int g = lane >> 2, t = lane & 3;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) own[(4 * n + t) * D + Layout::value_channel(i, r, g)] = o[n][i][r];
      }
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) o[n][i][r] = own[(4 * n + t) * D + 16 * i + 8 * r + g];
      }
    }
    __syncwarp();
  }
  // A row of kLeftPitch<D> floats for each head, then (m, l) of each: kLeft<D, NT> floats of the warp's own.
  OSCAR_DEVICE void leave(int lane, float* to) {
    constexpr int kPitch = kLeftPitch<D>;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      l[n] = sum_over_g(l[n]);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        to[(4 * n + t) * kPitch + 16 * i + g] = o[n][i][0];
        to[(4 * n + t) * kPitch + 16 * i + 8 + g] = o[n][i][1];
      }
      if (g == 0) {
        to[4 * NT * kPitch + 2 * (4 * n + t)] = m[n];
        to[4 * NT * kPitch + 2 * (4 * n + t) + 1] = l[n];
      }
    }
  }
};

// One query against all warps' states of a segment: `rows` are what leave() wrote (rows of kPitch floats),
// `stride` floats apart. heads: that exist of the 4 NT. All threads of the block, which has synchronised.
struct SegmentOutput {
  Partials parts;
  int partial;                // -1: o and lse are final
  int part_heads, part_head;  // of a part, and the first of these heads in it
  const float* sink_logits;
  void* o;
  float* lse;
  bool bf16;
  int64_t query;  // of the first head: index into (sequences, query heads)
  int sink_head;  // the same within the model's query heads

  // These heads of each of `run` KV heads, `group` apart.
  OSCAR_DEVICE MergedHeads merged(int first_part, int count, int run, int group, int heads) const {
    return {parts, first_part,  count, part_heads, part_head, run,   group,
            heads, sink_logits, o,     lse,        bf16,      query, sink_head};
  }
};
template <int D, int NT, int kMostWarps, int kPitch = kLeftPitch<D>>
OSCAR_DEVICE void combine(const float* rows, int stride, int warps, int heads, const SegmentOutput& out) {
  for (int at = 2 * threadIdx.x; at < heads * D; at += 2 * blockDim.x) {
    const int head = at / D, channel = at % D;
    float m = -INFINITY, x = 0.f, y = 0.f, l = 0.f;
#pragma unroll
    for (int w = 0; w < kMostWarps; ++w) {
      if (w < warps) m = fmaxf(m, rows[w * stride + 4 * NT * kPitch + 2 * head]);
    }
#pragma unroll
    for (int w = 0; w < kMostWarps; ++w) {
      if (w >= warps) break;
      const float* row = rows + w * stride;
      const float2 ml = *reinterpret_cast<const float2*>(row + 4 * NT * kPitch + 2 * head);
      const float f = ml.x == -INFINITY ? 0.f : exp2_approx(ml.x - m);
      const float2 v = *reinterpret_cast<const float2*>(row + head * kPitch + channel);
      x = fmaf(f, v.x, x);
      y = fmaf(f, v.y, y);
      l = fmaf(f, ml.y, l);
    }
    const bool first = channel == 0;
    if (out.partial < 0) {
      float* lse = out.lse && first ? out.lse + out.query + head : nullptr;
      const float f = final_scale(m, l, out.sink_logits, out.sink_head + head, lse);
      store_pair(out.o, out.bf16, (out.query + head) * D + channel, x * f, y * f);
    } else {
      const int64_t row = int64_t{out.partial} * out.part_heads + out.part_head + head;
      __stcg(reinterpret_cast<float2*>(out.parts.o + row * D + channel), make_float2(x, y));
      if (first) __stcg(out.parts.ml + row, make_float2(m, l));
    }
  }
}

}  // namespace oscar::cuda
