// From the logits of a page to the weights of its values, within one warp.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"

namespace oscar::cuda {

// Of a warp's own memory: 8 rows of 64 weights and 16 bytes more, so that they lie in different banks, and
// then for every lane what k_mean adds to the logits of its head.
inline constexpr int kWeightRow = 80, kShift = 8 * kWeightRow;

// cap tanh(x / cap) from one exponential: exact to 2^-23 of the cap.
OSCAR_DEVICE float capped_approx(float x, float cap) {
  return cap - __fdividef(2 * cap, 1 + exp2_approx(__fdividef(2 * kLog2e * x, cap)));
}

// Weights of 64 tokens as the operand of Values, from the softmax of their logits.
template <class Keys, class Values, int kDim>
OSCAR_DEVICE float softmax_weights(float (&x)[8], unsigned (&weights)[4], AttentionState<kDim, 1, 1>& state,
                                   const Keys& keys, const Values& values, float softcap, int first, int end,
                                   uint32_t own, int lane) {
  const int g = lane >> 2, t = lane & 3, flip = Keys::kFlips ? t >> 1 : 0;
  float unit = keys.unit, scale[8], minimum[8];
  values.weights(scale, minimum, flip);
  if (softcap > 0) {
    const float shift = __uint_as_float(load_shared(own + kShift + 8 * t));
#pragma unroll
    for (int r = 0; r < 8; ++r) x[r] = capped_approx(fmaf(x[r] + keys.offset(), unit, shift), softcap);
    unit = 1;
  }
  if (first > 0 || end < 64) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int token = 8 * g + (r ^ flip);
      if (token < first || token >= end) {
        x[r] = -INFINITY;
        scale[r] = minimum[r] = 0;
      }
    }
  }
  const float top = max_over_g(fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])),
                                     fmaxf(fmaxf(x[4], x[5]), fmaxf(x[6], x[7])))) *
                    unit;
  state.make_room(0, top);
  // Fixed point relative to the page's own maximum, so that a heavy token elsewhere does not push these below
  // the last bit.
  float fixed = 65500.f, back = 1.f / 65500.f;
  if constexpr (Values::kWeighted) {
    float most = fmaxf(fmaxf(fmaxf(scale[0], scale[1]), fmaxf(scale[2], scale[3])),
                       fmaxf(fmaxf(scale[4], scale[5]), fmaxf(scale[6], scale[7])));
    most = fmaxf(max_over_g(most), 1e-12f);
    fixed = __fdividef(65500.f, most);
    back *= most;
  }
  const float to_state = exp2_approx(top - state.m[0]);
  float mass = 0, low = 0;
  unsigned w[8];  // the sum's low 16 bits
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const float p = exp2_approx(fmaf(x[r], unit, -top));
    mass += p;
    if constexpr (Values::kMinima) low = fmaf(p, minimum[r], low);
    w[r] = __float_as_uint(fmaf(p, Values::kWeighted ? scale[r] * fixed : fixed, 8388608.f));
  }
  state.l[0] = fmaf(to_state, mass, state.l[0]);
  if constexpr (Values::kMinima) state.low[0][0] = fmaf(to_state, low, state.low[0][0]);
  const unsigned order = flip ? 0x1504 : 0x5140;  // low bytes of two tokens, then high bytes
  const unsigned a0 = permute_bytes(w[0], w[1], order), a1 = permute_bytes(w[2], w[3], order),
                 a2 = permute_bytes(w[4], w[5], order), a3 = permute_bytes(w[6], w[7], order);
  const uint32_t row = own + 2 * t * kWeightRow + 8 * g;
  store_shared2(row, permute_bytes(a0, a1, 0x7632), permute_bytes(a2, a3, 0x7632));
  store_shared2(row + kWeightRow, permute_bytes(a0, a1, 0x5410), permute_bytes(a2, a3, 0x5410));
  __syncwarp();
  const uint4 operand = load_shared4(own + g * kWeightRow + 16 * t);
  __syncwarp();
  weights[0] = operand.x;
  weights[1] = operand.y;
  weights[2] = operand.z;
  weights[3] = operand.w;
  return to_state * back;
}

}  // namespace oscar::cuda
