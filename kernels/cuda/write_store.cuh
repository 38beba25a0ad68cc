// From the codes of a row's units to the bytes of a layout, without shared memory.
#pragma once
#include "kernels/cuda/write_rows.cuh"
#include "kernels/int2.h"

namespace oscar::cuda {

// A row's place. `token`: of a native page; `block`: of the keys or values of its head there.
struct RowPlace {
  bool stored;
  int token;
  int64_t row;  // slot * kv_heads + head
  uint8_t* block;
};

OSCAR_DEVICE unsigned or_lanes(unsigned v, int distance) {
  return v | __shfl_xor_sync(kWarp, v, distance);
}

// 64 channels as 16 bytes, byte b with channels b, 16 + b, 32 + b, 48 + b: sglang rows of 64 and native keys.
// Lane t has bytes 8 (t % 2) .. + 7, as lane t ^ 2 has.
OSCAR_DEVICE void pack_64(const UnitCodes& low, const UnitCodes& high, int t, unsigned (&v)[2]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) v[k] = or_lanes((low.word[k] | high.word[k] << 4) << (t & 2), 2);
}

template <int D>
OSCAR_DEVICE void store_sglang(const UnitCodes (&units)[D / 32], const RowPlace& at, int t, uint8_t* codes) {
  uint8_t* row = codes + at.row * (D / 4);
  if constexpr (D == 64) {
    unsigned v[2];
    pack_64(units[0], units[1], t, v);
    if (at.stored && t < 2) *reinterpret_cast<uint2*>(row + 8 * t) = make_uint2(v[0], v[1]);
  } else {
    constexpr int kParts = D / 128;  // units a quarter of the row
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      unsigned v[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        v[k] = units[part].word[k] | units[part + kParts].word[k] << 2 |
               units[part + 2 * kParts].word[k] << 4 | units[part + 3 * kParts].word[k] << 6;
      }
      if (at.stored) *reinterpret_cast<uint2*>(row + 32 * part + 8 * t) = make_uint2(v[0], v[1]);
    }
  }
}

template <int D>
OSCAR_DEVICE void store_native_keys(const UnitCodes (&units)[D / 32], const RowPlace& at, int t) {
  const int g = at.token / 8, r = at.token % 8;
#pragma unroll
  for (int u = 0; u < D / 64; ++u) {
    unsigned v[2];
    pack_64(units[2 * u], units[2 * u + 1], t, v);
    uint8_t* to = at.block + 1024 * u + 512 * (r / 4) + 16 * (4 * g + 2 * (t & 1) + (t >> 1)) + 4 * (r % 4);
    if (at.stored) *reinterpret_cast<unsigned*>(to) = t < 2 ? v[0] : v[1];
  }
  if constexpr (D % 64 == 32) {
    const UnitCodes& last = units[D / 32 - 1];
    unsigned v[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) v[k] = or_lanes(or_lanes(last.word[k] << (2 * t), 1), 2);
    uint8_t* to = at.block + 1024 * (D / 64) + 64 * g + 32 * t + 4 * r;
    if (at.stored && t < 2) *reinterpret_cast<unsigned*>(to) = t == 0 ? v[0] : v[1];
  }
}

// 4 x 4 bytes between the lanes that differ by 4 and 8: byte i of lane q becomes byte q of lane i. q = lane /
// 4 % 4.
OSCAR_DEVICE unsigned transpose_bytes(unsigned v, int q) {
  const unsigned across = __shfl_xor_sync(kWarp, v, 4);
  v = __byte_perm(v, across, q & 1 ? 0x3715 : 0x6240);
  const unsigned over = __shfl_xor_sync(kWarp, v, 8);
  return __byte_perm(v, over, q & 2 ? 0x3276 : 0x5410);
}

// A byte of values holds four channels of one token, and words of four tokens: where four rows of a warp are
// four aligned tokens of a page they exchange bytes and store words, elsewhere bytes are stored.
template <int D>
OSCAR_DEVICE void store_native_values(const UnitCodes (&units)[D / 32], const RowPlace& at, int lane) {
  constexpr int kUnits = D / 32;
  const int t = lane & 3, q = lane / 4 & 3;
  const unsigned long long start = reinterpret_cast<unsigned long long>(at.block);
  const int first_token = __shfl_sync(kWarp, at.token, lane & 16);
  const unsigned long long first_block = __shfl_sync(kWarp, start, lane & 16);
  const bool follows =
      at.stored && (at.token & 3) == q && first_token == at.token - q && first_block == start;
  const bool together = (__ballot_sync(kWarp, follows) >> (lane & 16) & 0xffffu) == 0xffffu;
  uint8_t* to = at.block + 16 * (at.token / 16);
  // Lanes t and t ^ 1 have the same words in the end, k = t / 2; each stores every other unit.
  unsigned words[kUnits];
#pragma unroll
  for (int m = 0; m < kUnits; ++m) {
    const unsigned mine = units[m].word[0] << (2 * t), other = units[m].word[1] << (2 * t);
    const unsigned kept = t < 2 ? mine : other, sent = t < 2 ? other : mine;
    words[m] = or_lanes(kept | __shfl_xor_sync(kWarp, sent, 2), 1);
  }
#pragma unroll
  for (int m = 0; m < kUnits; m += 2) {
    const unsigned word = m + 1 < kUnits && (t & 1) ? words[m + 1 < kUnits ? m + 1 : m] : words[m];
    const unsigned tokens = transpose_bytes(word, q);
    const int unit = m + (t & 1), i = 4 * (t >> 1);
    if (unit >= kUnits) continue;
    if (together) {
      *reinterpret_cast<unsigned*>(to + 512 * unit + 64 * (i + q) + (at.token % 16 & ~3)) = tokens;
    } else if (at.stored) {
#pragma unroll
      for (int b = 0; b < 4; ++b)
        to[512 * unit + 64 * (i + b) + at.token % 16] = static_cast<uint8_t>(word >> (8 * b));
    }
  }
}

// As kernels/half.h: what is beyond the largest finite value becomes that value.
OSCAR_DEVICE unsigned saturated_half(float x) {
  if (isnan(x)) return (__float_as_uint(x) >> 16 & 0x8000u) | 0x7e00u;
  return __half_as_ushort(__float2half_rn(fminf(fmaxf(x, -65504.f), 65504.f)));
}

}  // namespace oscar::cuda
