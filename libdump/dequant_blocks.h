// Decoders of single values and of ggml's blocks of 32 to 128 elements. Internal: dequant.cpp's table is the
// way in.
//
// The blocks are packed: nothing in them is aligned. Each decoder takes one block and writes all its
// elements. Products and sums are ggml's, in its order, so that the float32 results are the same bits.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#include "formats/dtype.h"

namespace oscar::ggml {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
inline const uint8_t* codes_at(const std::byte* at) {
  return reinterpret_cast<const uint8_t*>(at);
}

inline float half_at(const std::byte* at) {
  return f16_to_float(load<uint16_t>(at));
}

inline void f32(const std::byte* from, int64_t count, float* out) {
  if (count) std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
}
// f16_to_float without its branches: six times as fast. As in ggml a product makes a signalling NaN quiet;
// gguf-py keeps it.
inline void f16(const std::byte* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const auto half = load<uint16_t>(from + 2 * i);
    const int32_t magnitude = half & 0x7fff, below_normal = -(magnitude < 0x400);
    const float normal = std::bit_cast<float>((magnitude << 13) + (224 << 23)) * 0x1p-112f;
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    const int32_t bits =
        (std::bit_cast<int32_t>(subnormal) & below_normal) | (std::bit_cast<int32_t>(normal) & ~below_normal);
    out[i] = std::bit_cast<float>(bits | (half & 0x8000) << 16);
  }
}
inline void bf16(const std::byte* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(load<uint16_t>(from + 2 * i));
}

// [half d][16 bytes]: +d for a set bit, -d for a clear one; bit j % 8 of byte j / 8
inline void q1_0(const std::byte* from, float* __restrict out) {
  const auto d = std::bit_cast<uint32_t>(half_at(from));
  const uint8_t* q = codes_at(from + 2);
  for (int byte = 0; byte < 16; ++byte, out += 8)
    for (int j = 0; j < 8; ++j) out[j] = std::bit_cast<float>(d ^ (~q[byte] >> j & 1u) << 31);
}

// The four-bit types store element j (low half of byte j) and element j + 16 (high half) together.

// [half d][16 bytes]: d * (q - 8)
inline void q4_0(const std::byte* from, float* __restrict out) {
  const float d = half_at(from);
  const uint8_t* q = codes_at(from + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>((q[j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((q[j] >> 4) - 8) * d;
  }
}

// [half d][half m][16 bytes]: d * q + m
inline void q4_1(const std::byte* from, float* __restrict out) {
  const float d = half_at(from), m = half_at(from + 2);
  const uint8_t* q = codes_at(from + 4);
  for (int j = 0; j < 16; ++j) {
    out[j] = static_cast<float>(q[j] & 15) * d + m;
    out[j + 16] = static_cast<float>(q[j] >> 4) * d + m;
  }
}

// The five-bit types keep the fifth bit of element j in bit j of a 32-bit word. A mask in place of a shift by
// j: SSE2 shifts all lanes by one count.
inline void five_bits(const std::byte* high, const std::byte* low, int32_t* __restrict q) {
  const auto bits = load<int32_t>(high), upper = bits >> 16;
  const uint8_t* nibbles = codes_at(low);
  int32_t mask[16];
  for (int j = 0; j < 16; ++j) mask[j] = 1 << j;
  for (int j = 0; j < 16; ++j) {
    q[j] = (nibbles[j] & 15) | (-((bits & mask[j]) != 0) & 16);
    q[j + 16] = (nibbles[j] >> 4) | (-((upper & mask[j]) != 0) & 16);
  }
}

// [half d][u32 high bits][16 bytes]: d * (q - 16)
inline void q5_0(const std::byte* from, float* __restrict out) {
  const float d = half_at(from);
  int32_t q[32];
  five_bits(from + 2, from + 6, q);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j] - 16) * d;
}

// [half d][half m][u32 high bits][16 bytes]: d * q + m
inline void q5_1(const std::byte* from, float* __restrict out) {
  const float d = half_at(from), m = half_at(from + 2);
  int32_t q[32];
  five_bits(from + 4, from + 8, q);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j]) * d + m;
}

// [half d][32 int8]: d * q
inline void q8_0(const std::byte* from, float* __restrict out) {
  const float d = half_at(from);
  const auto* q = reinterpret_cast<const int8_t*>(from + 2);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j]) * d;
}

// Codebook types: element j is the low half of byte j, element j + n the high half of it.
inline void look_up(const int8_t (&codebook)[16], float scale, const uint8_t* q, int n,
                    float* __restrict out) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = static_cast<float>(codebook[i]) * scale;
  for (int j = 0; j < n; ++j) {
    out[j] = values[q[j] & 15];
    out[j + n] = values[q[j] >> 4];
  }
}
// Twice the values of e2m1, so scales are halved. Code 8 is +0: the standard's -0 does not survive in int8.
inline constexpr int8_t kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// [e8m0 scale][16 bytes]. Half a scale e is 2^(e - 128), subnormal for 0 and 1. Code 255, a NaN in the
// standard, is 2^127 here as it is in ggml and gguf-py: all but 0 and 1/2 of e2m1 are infinite.
inline void mxfp4(const std::byte* from, float* __restrict out) {
  const auto e = static_cast<uint32_t>(*from);
  look_up(kE2M1, std::bit_cast<float>(e < 2 ? 0x200000u << e : (e - 1) << 23), codes_at(from + 1), 16, out);
}

// [4 scales][4 x 8 bytes]: four blocks of 16 elements. A scale is e4m3 without sign (bit 7 is ignored); code
// 0x7f, its NaN, is 0 in ggml and gguf-py, but 0xff is 240. A converted checkpoint has one more scale a
// tensor, NAME.scale, which the reader of the model must apply or refuse.
inline void nvfp4(const std::byte* from, float* __restrict out) {
  for (int part = 0; part < 4; ++part) {
    const auto code = static_cast<uint32_t>(from[part]);
    const uint32_t magnitude = code & 0x7f;
    float scale = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-10f
                                : std::bit_cast<float>((magnitude << 20) + (119u << 23));
    if (code == 0x7f) scale = 0;
    look_up(kE2M1, scale, codes_at(from + 4 + 8 * part), 8, out + 16 * part);
  }
}

// [half d][16 bytes]
inline void iq4_nl(const std::byte* from, float* __restrict out) {
  look_up(kIq4, half_at(from), codes_at(from + 2), 16, out);
}

}  // namespace oscar::ggml
