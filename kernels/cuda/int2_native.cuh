// The native page as attend_tile() reads it: one KV head's keys and values, brought into shared memory whole.
#pragma once
#include "kernels/cuda/int2_tile.cuh"
#include "kernels/int2.h"

namespace oscar::cuda {

template <class Shape>
struct NativePage {
  uint32_t base;  // shared memory
  int lane;

  static constexpr bool kValueZeros = false;  // value_metadata() says minima, not -zeros
  static constexpr int kSide = int2::native_bytes(Shape::D, Shape::G), kBytes = 2 * kSide;

  // Channel of byte 4 t + j of operand b: first half fields 0 and 2 of a code byte, second half fields 1
  // and 3.
  template <int D>
  static OSCAR_DEVICE int channel(int block, int half, int t, int j) {
    if (D % 64 == 32 && block == D / 32 - 1) return 32 * block + 16 * (t >> 1) + 8 * half + 4 * (t & 1) + j;
    return 32 * block + 16 * half + 4 * t + j;
  }
  template <class S>
  static constexpr OSCAR_DEVICE int group(int block, int) {
    return S::group_of(block);
  }

  static constexpr OSCAR_DEVICE int value_channel(int i, int r, int g) { return 16 * i + 8 * r + g; }
  static constexpr OSCAR_DEVICE int value_group(int i, int) { return Shape::group_of(i / 2); }

  // s[n][i] += codes . query over the channels of group h.
  template <class S>
  OSCAR_DEVICE void keys(int h, const Int2Query<S>& query, int (&s)[S::NT][4][4]) const {
    constexpr int kUnits = S::D / 64;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (S::group_of(2 * u) != h && S::group_of(2 * u + 1) != h) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 w = load_shared4(base + 1024 * u + 512 * half + 16 * lane);
        const unsigned words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int block = 0; block < 2; ++block) {
            if (S::group_of(2 * u + block) != h) continue;
            const unsigned a = words[2 * i] >> (4 * block), b = words[2 * i + 1] >> (4 * block);
#pragma unroll
            for (int n = 0; n < S::NT; ++n) {
              product_us(s[n][2 * half + i], a & kField0, b & kField0, a & kField1, b & kField1,
                         query.limbs[n][2 * u + block][0], query.limbs[n][2 * u + block][1]);
            }
          }
        }
      }
    }
    if constexpr (S::D % 64 == 32) {
      if (S::group_of(2 * kUnits) == h) {
        const int t = lane & 3;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 w = load_shared4(base + 1024 * kUnits + 64 * (lane >> 2) + 32 * (t & 1) + 16 * half);
          const unsigned words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const unsigned a = words[2 * i] >> (4 * (t >> 1)), b = words[2 * i + 1] >> (4 * (t >> 1));
#pragma unroll
            for (int n = 0; n < S::NT; ++n) {
              product_us(s[n][2 * half + i], a & kField0, b & kField0, a & kField1, b & kField1,
                         query.limbs[n][2 * kUnits][0], query.limbs[n][2 * kUnits][1]);
            }
          }
        }
      }
    }
  }
  template <class S, class F>
  OSCAR_DEVICE void values(int h, F&& tile) const {
#pragma unroll
    for (int u = 0; u < S::kBlocks; ++u) {
      if (S::group_of(u) != h) continue;
      const uint4 codes = load_shared4(base + kSide + 512 * u + 16 * lane);
      tile(2 * u, kField0, kField1, codes);
      tile(2 * u + 1, kField2, kField3, codes);
    }
  }
  OSCAR_DEVICE void key_metadata(int h, float (&scale)[8], float (&low)[8]) const {
    metadata(base, h, scale, low);
  }
  OSCAR_DEVICE void value_metadata(int h, float (&scale)[8], float (&low)[8]) const {
    metadata(base + kSide, h, scale, low);
  }

 private:
  OSCAR_DEVICE void metadata(uint32_t side, int h, float (&scale)[8], float (&low)[8]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 v = load_shared4(side + 16 * Shape::D + 256 * h + 128 * half + 16 * (lane >> 2));
      const unsigned w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float2 f = __half22float2(reinterpret_cast<const __half2&>(w[r]));
        scale[4 * half + r] = f.x;
        low[4 * half + r] = f.y;
      }
    }
  }
};

}  // namespace oscar::cuda
