// Decoders of ggml's super-blocks of 256 elements: K-quants, IQ4_XS and the ternary types. Internal, as
// dequant_blocks.h is.
//
// Runs of 32 elements share bytes: run r of a group lies in bits (width * r) of 32 consecutive bytes.
#pragma once
#include "libdump/dequant_blocks.h"

namespace oscar::ggml {

// [16 bytes: scale low, min high][64 bytes][half d][half dmin]: two halves of four runs; every 16 elements
// are (d * scale) * q - dmin * min
inline void q2_k(const std::byte* from, float* __restrict out) {
  const uint8_t *scales = codes_at(from), *q = codes_at(from + 16);
  const float d = half_at(from + 80), dmin = half_at(from + 82);
  for (int half = 0; half < 2; ++half, q += 32) {
    for (int r = 0; r < 4; ++r, out += 32, scales += 2) {
      for (int part = 0; part < 2; ++part) {
        const float scale = d * static_cast<float>(scales[part] & 15);
        const float min = dmin * static_cast<float>(scales[part] >> 4);
        for (int l = 16 * part; l < 16 * part + 16; ++l)
          out[l] = scale * static_cast<float>(q[l] >> 2 * r & 3) - min;
      }
    }
  }
}

// [32 bytes third bit][64 bytes][12 bytes scales][half d]: two halves of four runs; run r of half h has its
// third bit in bit 4h + r, and a clear bit takes 4 away. Scale i of 16 elements has its low four bits in half
// i / 8 of byte i % 8 and the high two in bits 2 * (i / 4) of byte 8 + i % 4: (d * (scale - 32)) * q
inline void q3_k(const std::byte* from, float* __restrict out) {
  const uint8_t *high = codes_at(from), *q = codes_at(from + 32), *packed = codes_at(from + 96);
  const float d = half_at(from + 108);
  float scales[16];
  for (int i = 0; i < 16; ++i) {
    const int scale = (packed[i % 8] >> 4 * (i / 8) & 15) | (packed[8 + i % 4] >> 2 * (i / 4) & 3) << 4;
    scales[i] = d * static_cast<float>(scale - 32);
  }
  for (int run = 0; run < 8; ++run, out += 32) {
    const uint8_t* low = q + 32 * (run / 4);
    const int shift = 2 * (run % 4);
    for (int part = 0; part < 2; ++part) {
      const float scale = scales[2 * run + part];
      for (int l = 16 * part; l < 16 * part + 16; ++l)
        out[l] = scale * static_cast<float>((low[l] >> shift & 3) + (high[l] >> run & 1) * 4 - 4);
    }
  }
}

// Eight scales and eight mins of six bits: the first four of each in the low bits of bytes 0-3 and 4-7, of
// the others four bits in bytes 8-11 (scale low, min high) and two in the top of bytes 0-3 and 4-7.
inline void six_bits(const uint8_t* packed, uint8_t* __restrict scales, uint8_t* __restrict mins) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = packed[j] & 63;
    mins[j] = packed[j + 4] & 63;
    scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
    mins[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
  }
}

// [half d][half dmin][12 bytes scales and mins][with five bits: 32 bytes, fifth bit][128 bytes]: eight runs,
// two of them in the halves of the same 32 bytes, each (d * scale) * q - dmin * min
template <bool five>
void q4_or_5_k(const std::byte* from, float* __restrict out) {
  const float d = half_at(from), dmin = half_at(from + 2);
  uint8_t scales[8], mins[8];
  six_bits(codes_at(from + 4), scales, mins);
  const uint8_t *high = codes_at(from + 16), *low = codes_at(from + (five ? 48 : 16));
  for (int run = 0; run < 8; ++run, out += 32) {
    const float scale = d * static_cast<float>(scales[run]), min = dmin * static_cast<float>(mins[run]);
    const uint8_t* nibbles = low + 32 * (run / 2);
    const int shift = 4 * (run % 2);
    for (int l = 0; l < 32; ++l) {
      int q = nibbles[l] >> shift & 15;
      if constexpr (five) q |= (high[l] >> run & 1) << 4;
      out[l] = scale * static_cast<float>(q) - min;
    }
  }
}

// [128 bytes low][64 bytes high][16 int8 scales][half d]: 256 elements in two halves, each of four runs
// of 32. Run r takes four bits from low[32 * (r & 1) + l] (its upper half for r >= 2) and two from bits 2r of
// high[l]; every 16 elements have a scale: (d * scale) * (q - 32).
inline void q6_k(const std::byte* from, float* __restrict out) {
  const uint8_t *low = codes_at(from), *high = low + 128;
  const auto* scales = reinterpret_cast<const int8_t*>(from + 192);
  const float d = half_at(from + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128) {
    for (int r = 0; r < 4; ++r) {
      const uint8_t* nibbles = low + 32 * (r & 1);
      const int nibble_shift = r < 2 ? 0 : 4, pair_shift = 2 * r;
      for (int part = 0; part < 2; ++part) {
        const float scale = d * static_cast<float>(scales[2 * r + part]);
        for (int l = 16 * part; l < 16 * part + 16; ++l) {
          const int q = (nibbles[l] >> nibble_shift & 15) | ((high[l] >> pair_shift & 3) << 4);
          out[32 * r + l] = scale * static_cast<float>(q - 32);
        }
      }
    }
  }
}

// [half d][u16 scales, two high bits each][4 bytes scales, four low bits each][8 x 16 bytes]: eight blocks as
// those of IQ4_NL, each with d * (scale - 32)
inline void iq4_xs(const std::byte* from, float* __restrict out) {
  const float d = half_at(from);
  const int high = load<uint16_t>(from + 2);
  const uint8_t *low = codes_at(from + 4), *q = codes_at(from + 8);
  for (int i = 0; i < 8; ++i) {
    const int scale = (low[i / 2] >> 4 * (i % 2) & 15) | (high >> 2 * i & 3) << 4;
    look_up(kIq4, d * static_cast<float>(scale - 32), q + 16 * i, 16, out + 32 * i);
  }
}

// Trit n of `bytes` bytes at q, times d. A byte is a fraction of 256 in base 3: times 3^n, modulo 256, its
// first digit is the trit.
inline void trits(const uint8_t* q, int bytes, int n, float d, float* __restrict out) {
  constexpr uint8_t powers[] = {1, 3, 9, 27, 81};
  for (int j = 0; j < bytes; ++j) {
    const auto fraction = static_cast<uint8_t>(q[j] * powers[n]);
    out[j] = static_cast<float>((fraction * 3 >> 8) - 1) * d;
  }
}

// [32 + 16 bytes of five trits][4 bytes of four][half d]: d * (trit - 1); of each group first the first trits
// of all its bytes
inline void tq1_0(const std::byte* from, float* __restrict out) {
  const uint8_t* q = codes_at(from);
  const float d = half_at(from + 52);
  for (int n = 0; n < 5; ++n) trits(q, 32, n, d, out + 32 * n);
  for (int n = 0; n < 5; ++n) trits(q + 32, 16, n, d, out + 160 + 16 * n);
  for (int n = 0; n < 4; ++n) trits(q + 48, 4, n, d, out + 240 + 4 * n);
}

// [64 bytes][half d]: two halves of four runs, d * (q - 1); 3 does not occur but decodes to 2
inline void tq2_0(const std::byte* from, float* __restrict out) {
  const uint8_t* q = codes_at(from);
  const float d = half_at(from + 64);
  for (int half = 0; half < 2; ++half, q += 32)
    for (int r = 0; r < 4; ++r, out += 32)
      for (int l = 0; l < 32; ++l) out[l] = static_cast<float>((q[l] >> 2 * r & 3) - 1) * d;
}

}  // namespace oscar::ggml
