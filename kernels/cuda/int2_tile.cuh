// Attention over 64 tokens whose keys and values are INT2 codes, by one warp, on the integer matrix unit.
//
// Codes are never read back to numbers: k^ = s c + b, so a logit is s (q.c) + b sum(q), and an output is sum
// (p s') c' + sum p b'. Codes 0..3, masked in place within their bytes (fields weigh 1, 4, 16, 64), are the
// (16, 32) operand a; the eight columns of b are 4 query heads x {high, low} byte of a 16-bit fixed point q,
// or p s'. Sums of products are exact integers.
#pragma once
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/exact_rows.cuh"

namespace oscar::cuda {

inline constexpr unsigned kField0 = 0x03030303u, kField1 = 0x0c0c0c0cu, kField2 = 0x30303030u,
                          kField3 = 0xc0c0c0c0u;
inline constexpr float kLeastScale = 5.9604645e-8f;  // of values: what a scale of zero is read as
inline constexpr int kWeightPitch =
    80;  // bytes a row of 64 weights, so that eight rows lie in different banks

// D channels in G groups, 4 NT query heads. Blocks of 32 channels; block n is group n / (D / 32 / G).
template <int D_, int G_, int NT_>
struct Int2Shape {
  static constexpr int D = D_, G = G_, NT = NT_, kBlocks = D / 32, kTiles = D / 16;
  static constexpr int group_of(int block) { return block / (kBlocks / G); }
  static constexpr int kWeightBytes = NT * 8 * kWeightPitch;
};

// Fixed point query: limbs[n][block][half] are the bytes of column g = (head 4 n + g / 2, limb g % 2; limb 0
// is high) at the channels that Layout::channel() names; the second half is q / 4, since its fields weigh 4.
template <class Shape>
struct Int2Query {
  unsigned limbs[Shape::NT][Shape::kBlocks][2];
  float sum[Shape::NT][Shape::G];  // of the fixed point, of head 4 n + t, a group each
  float scale[Shape::NT];          // from fixed point to logits * log2 e
  float shift[Shape::NT];          // what k_mean adds to them
};

// What a lane reads of the queries: loaded early, used by make_query().
template <class Shape>
struct LoadedQuery {
  float4 x[Shape::NT][2 * Shape::kBlocks];
};
template <class Shape, class Layout>
OSCAR_DEVICE void load_query(LoadedQuery<Shape>& out, const QueryRows& rows, int lane) {
#pragma unroll
  for (int n = 0; n < Shape::NT; ++n) {
    query_fours(
        rows, 4 * n + (lane >> 3),
        [&](int row, int i) {
          return int64_t{row} * Shape::D + Layout::template channel<Shape::D>(i / 2, i % 2, lane & 3, 0);
        },
        out.x[n]);
  }
}
template <class Shape, class Layout>
OSCAR_DEVICE void make_query(Int2Query<Shape>& out, const LoadedQuery<Shape>& loaded, const QueryRows& rows,
                             const float* k_mean, int lane) {
  constexpr int D = Shape::D;
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < Shape::NT; ++n) {
    float largest = 1e-20f, mean = 0.f, x[Shape::kBlocks][2][4];
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 v = loaded.x[n][2 * block + half];
        x[block][half][0] = v.x;
        x[block][half][1] = v.y;
        x[block][half][2] = v.z;
        x[block][half][3] = v.w;
#pragma unroll
        for (int j = 0; j < 4; ++j) largest = fmaxf(largest, fabsf(x[block][half][j]));
      }
    }
    if (k_mean) {
#pragma unroll
      for (int i = 0; i < 2 * Shape::kBlocks; ++i) {
        // A plain load: the compiler moves those of the read-only path before the test of the pointer.
        const float4 k =
            *reinterpret_cast<const float4*>(k_mean + Layout::template channel<D>(i / 2, i % 2, t, 0));
        const float(&v)[4] = x[i / 2][i % 2];
        mean = fmaf(v[0], k.x, fmaf(v[1], k.y, fmaf(v[2], k.z, fmaf(v[3], k.w, mean))));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 2));
    mean += __shfl_xor_sync(kWarp, mean, 1);
    mean += __shfl_xor_sync(kWarp, mean, 2);
    const float fixed = 32000.f / largest;
    int sums[Shape::G];
#pragma unroll
    for (int h = 0; h < Shape::G; ++h) sums[h] = 0;
#pragma unroll
    for (int block = 0; block < Shape::kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned packed = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int q = __float2int_rn(x[block][half][j] * (half ? fixed * 0.25f : fixed));
          sums[Layout::template group<Shape>(block, half)] += half ? 4 * q : q;
          const int high = (q + 128) >> 8, low = q - (high << 8);
          packed |= static_cast<unsigned>(((g & 1) ? low : high) & 255) << (8 * j);
        }
        out.limbs[n][block][half] = packed;
      }
    }
#pragma unroll
    for (int h = 0; h < Shape::G; ++h) {
      sums[h] += __shfl_xor_sync(kWarp, sums[h], 1);
      sums[h] += __shfl_xor_sync(kWarp, sums[h], 2);
      out.sum[n][h] = static_cast<float>(__shfl_sync(kWarp, sums[h], 8 * t));
    }
    out.scale[n] = rows.scale / __shfl_sync(kWarp, fixed, 8 * t);
    out.shift[n] = rows.scale * __shfl_sync(kWarp, mean, 8 * t);
  }
}

// Tokens [first, end) of the tile count where kPartial; there too logits may be capped. page: what Layout
// reads codes and metadata from. weights: kWeightBytes of shared memory of the warp's own.
template <class Shape, bool kPartial, class Layout>
OSCAR_DEVICE void attend_tile(const Layout& page, const Int2Query<Shape>& query,
                              AttentionState<Shape::D, Shape::NT, Shape::G>& state, uint32_t weights,
                              int lane, int first, int end, float softcap) {
  constexpr int NT = Shape::NT, G = Shape::G;
  const int g = lane >> 2, t = lane & 3;
  float x[NT][8];
#pragma unroll
  for (int h = 0; h < G; ++h) {
    int s[NT][4][4];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i][0] = s[n][i][1] = s[n][i][2] = s[n][i][3] = 0;
    }
    page.template keys<Shape>(h, query, s);
    float scale[8], low[8];
    page.key_metadata(h, scale, low);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const float dot = static_cast<float>(s[n][r >> 1][2 * (r & 1)] * 256 + s[n][r >> 1][2 * (r & 1) + 1]);
        x[n][r] = h == 0 ? fmaf(scale[r], dot, low[r] * query.sum[n][h])
                         : fmaf(scale[r], dot, fmaf(low[r], query.sum[n][h], x[n][r]));
      }
    }
  }
  // Weights p s' are made of one power of two, relative to the largest of the tile, so that 16 bits of fixed
  // point go as far as they can; p is a weight over s'.
  float unit[NT];
#pragma unroll
  for (int h = 0; h < G; ++h) {
    float scale[8], low[8], lift[8];
    page.value_metadata(h, scale, low);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      if (kPartial && (8 * g + r < first || 8 * g + r >= end)) scale[r] = 1.f, low[r] = 0.f;
      scale[r] = fmaxf(scale[r], kLeastScale);
      lift[r] = log2_approx(scale[r]);
      scale[r] = reciprocal_approx(scale[r]);
      if (!Layout::kValueZeros) low[r] *= scale[r];
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if (kPartial && h == 0) {
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          x[n][r] *= query.scale[n];
          if (softcap > 0.f) x[n][r] = capped(x[n][r] + query.shift[n], softcap);
          if (8 * g + r < first || 8 * g + r >= end) x[n][r] = -INFINITY;
        }
      }
      float lifted[8], top = -INFINITY;
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        lifted[r] = kPartial ? x[n][r] + lift[r] : fmaf(x[n][r], query.scale[n], lift[r]);
        top = fmaxf(top, lifted[r]);
      }
      top = max_over_g(top);
      if (h == 0) state.make_room(n, top);
      const float back = exp2_approx(top - state.m[n]);
      float mass = 0.f, minimum = 0.f;
      unsigned w[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const float weight = exp2_approx(lifted[r] - top);
        mass = fmaf(weight, scale[r], mass);
        minimum = fmaf(weight, low[r], minimum);
        w[r] = __float_as_uint(fmaf(weight, 65500.f, 8388608.f));
      }
      if (h == 0) state.l[n] = fmaf(back, mass, state.l[n]);
      state.low[n][h] = fmaf(back, minimum, state.low[n][h]);
      unit[n] = back * (1.f / 65500.f);
      const unsigned a0 = __byte_perm(w[0], w[1], 0x5140), a1 = __byte_perm(w[2], w[3], 0x5140),
                     a2 = __byte_perm(w[4], w[5], 0x5140), a3 = __byte_perm(w[6], w[7], 0x5140);
      const uint32_t row = weights + (8 * n + 2 * t) * kWeightPitch + 8 * g;
      store_shared2(row, __byte_perm(a0, a1, 0x7632), __byte_perm(a2, a3, 0x7632));
      store_shared2(row + kWeightPitch, __byte_perm(a0, a1, 0x5410), __byte_perm(a2, a3, 0x5410));
    }
    __syncwarp();
    uint4 b[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) b[n] = load_shared4(weights + (8 * n + g) * kWeightPitch + 16 * t);
    if constexpr (G > 1) __syncwarp();
    page.template values<Shape>(
        h, [&](int tile, unsigned first_mask, unsigned second_mask, const uint4& codes) {
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            int c[4] = {0, 0, 0, 0};
            product_uu(c, codes.x & first_mask, codes.x & second_mask, codes.y & first_mask,
                       codes.y & second_mask, b[n].x, b[n].y);
            product_uu(c, codes.z & first_mask, codes.z & second_mask, codes.w & first_mask,
                       codes.w & second_mask, b[n].z, b[n].w);
            state.o[n][tile][0] = fmaf(static_cast<float>(c[0] * 256 + c[1]), unit[n], state.o[n][tile][0]);
            state.o[n][tile][1] = fmaf(static_cast<float>(c[2] * 256 + c[3]), unit[n], state.o[n][tile][1]);
          }
        });
  }
}

}  // namespace oscar::cuda
