// INT2 codes of one group on one side of a cache whose other side is vector codes. Codes are operands as they
// lie in the page, four weights (1, 4, 16, 64) by mask and a shift by four: logits are scale * q.code +
// minimum * sum(q), outputs sum(p scale) code + sum(p minimum), with the weights undone in the query and at
// the very end.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"

namespace oscar::cuda {

inline constexpr unsigned kBits01 = 0x03030303u, kBits23 = 0x0c0c0c0cu;

// Two loads of metadata of a block: float16 scale and minimum of tokens 8 g + 0..3, then 8 g + 4..7.
struct Metadata {
  uint4 part[2];
  OSCAR_DEVICE void load(const uint8_t* block, int dim, int lane) {
    const uint8_t* from = block + 16 * dim - 16 * lane + 16 * (lane / 4);
    part[0] = load_stream4(from);
    part[1] = load_stream4(from + 128);
  }
  OSCAR_DEVICE float2 token(int r) const { return halves(component(part[r / 4], r % 4)); }
};

template <int kDim>
struct Int2Keys {
  static constexpr int kLoads = kDim / 32, kUnits = kDim / 64;
  static constexpr uint32_t kTableBytes = 0;
  static constexpr bool kStages = false;
  static constexpr bool kFlips = false;

  uint4 codes[kLoads];
  Metadata metadata;
  unsigned query[kUnits][4];
  float unit, query_sum;

  OSCAR_DEVICE explicit Int2Keys(int) {}
  OSCAR_DEVICE void load(const uint8_t* block, int i) { codes[i] = load_stream4(block + 512 * i); }
  OSCAR_DEVICE void load_scales(const uint8_t* block, int lane, bool) { metadata.load(block, kDim, lane); }
  OSCAR_DEVICE static void build(uint32_t) {}

  OSCAR_DEVICE void begin(const VectorArguments& a, const QueryRows& rows, int, uint32_t) {
    const int lane = thread_again() % 32, g = lane / 4, t = lane % 4;
    float4 x[4 * kUnits];  // of unit i / 4, field i % 4
    query_fours<4 * kUnits>(
        rows, g / 2, [&](int row, int i) { return row * kDim + 16 * i + 4 * t; }, x);
    float top = 1e-20f;
#pragma unroll
    for (int i = 0; i < 4 * kUnits; ++i) top = fmaxf(top, largest(x[i]));
    top = fmaxf(top, __shfl_xor_sync(kWarp, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kWarp, top, 2));
    const float fixed = 32000.f / top;
    int sum = 0;  // of the rounded query, so that a constant key has a constant logit
#pragma unroll
    for (int i = 0; i < 4 * kUnits; ++i) {
      const float weighted = i % 2 ? fixed * 0.25f : fixed;
      query[i / 4][i % 4] = pack_limbs(x[i], weighted, g & 1);
      const auto fixed_of = [&](float v) { return __float2int_rn(v * weighted); };
      sum += (fixed_of(x[i].x) + fixed_of(x[i].y) + fixed_of(x[i].z) + fixed_of(x[i].w)) * (i % 2 ? 4 : 1);
    }
    sum += __shfl_xor_sync(kWarp, sum, 1);
    sum += __shfl_xor_sync(kWarp, sum, 2);
    query_sum = static_cast<float>(__shfl_sync(kWarp, sum, 8 * t));
    unit = rows.scale / __shfl_sync(kWarp, fixed, 8 * t);
  }
  OSCAR_DEVICE float offset() const {
    return 0;
  }

  OSCAR_DEVICE void logits(float (&x)[8], const uint8_t* next, bool more, bool, int lane) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      int sums[4] = {};
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const uint4& four = codes[2 * u + tile / 2];
        unsigned a = component(four, 2 * tile % 4), b = component(four, 2 * tile % 4 + 1);
        product_us(sums, a & kBits01, b & kBits01, a & kBits23, b & kBits23, query[u][0], query[u][1]);
        a >>= 4;
        b >>= 4;
        product_us(sums, a & kBits01, b & kBits01, a & kBits23, b & kBits23, query[u][2], query[u][3]);
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 f = metadata.token(2 * tile + row);
        x[2 * tile + row] = fmaf(f.x, limbs(sums[2 * row], sums[2 * row + 1]), f.y * query_sum);
      }
      if (more && tile % 2) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) load(next, 2 * u + tile / 2);
      }
    }
    if (more) metadata.load(next, kDim, lane);
  }
};

template <int kDim>
struct Int2Values {
  static constexpr int kLoads = kDim / 32;
  static constexpr uint32_t kTableBytes = 0;
  static constexpr bool kStages = false;
  static constexpr bool kWeighted = true, kMinima = true;

  uint4 codes[kLoads];
  Metadata metadata;

  OSCAR_DEVICE explicit Int2Values(int) {}
  OSCAR_DEVICE void load(const uint8_t* block, int i, int) { codes[i] = load_stream4(block + 512 * i); }
  OSCAR_DEVICE void load_scales(const uint8_t* block, int lane, bool) { metadata.load(block, kDim, lane); }
  OSCAR_DEVICE static void build(uint32_t) {}

  OSCAR_DEVICE void weights(float (&scale)[8], float (&minimum)[8], bool flipped) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = metadata.token(2 * i), b = metadata.token(2 * i + 1);
      scale[2 * i] = flipped ? b.x : a.x;
      scale[2 * i + 1] = flipped ? a.x : b.x;
      minimum[2 * i] = flipped ? b.y : a.y;
      minimum[2 * i + 1] = flipped ? a.y : b.y;
    }
  }
  OSCAR_DEVICE static int channel(int i, int r, int g) {
    return 16 * i + 8 * r + g;
  }
  OSCAR_DEVICE static void finish(float (&o)[kDim / 16][2], uint32_t, float minimum, int) {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      o[i][0] = fmaf(o[i][0], i % 2 ? 0.0625f : 1.f, minimum);
      o[i][1] = fmaf(o[i][1], i % 2 ? 0.015625f : 0.25f, minimum);
    }
  }
  OSCAR_DEVICE static void store(const float (&o)[kDim / 16][2], float* row, int lane) {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      row[channel(i, 0, lane / 4)] = o[i][0];
      row[channel(i, 1, lane / 4)] = o[i][1];
    }
  }

  // out[2 u + f / 2][f % 2]: channel 32 u + 8 f + g of head t, 4^f times too large.
  OSCAR_DEVICE void accumulate(float (&out)[kDim / 16][2], const unsigned (&weights)[4], float scale,
                               const uint8_t* next, bool more, int lane) {
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const uint4 four = codes[u];
      if (more) load(next, u, lane);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const unsigned low = kBits01 << (4 * pair), high = kBits23 << (4 * pair);
        int sums[4] = {};
        product_uu(sums, four.x & low, four.x & high, four.y & low, four.y & high, weights[0], weights[1]);
        product_uu(sums, four.z & low, four.z & high, four.w & low, four.w & high, weights[2], weights[3]);
        add(out[2 * u + pair], sums, scale);
      }
    }
  }
};

}  // namespace oscar::cuda
