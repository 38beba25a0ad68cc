// Internal: the two 16-bit floats as their bits.
#pragma once
#include <bit>
#include <cstdint>

namespace oscar {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

inline float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest < 0x400u) {
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
}

// To nearest, ties to even; what is beyond the largest finite value becomes that value, a NaN stays one.
inline uint16_t float_to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return sign | 0x7e00u;
  if (rest >= 0x477ff000u) return sign | 0x7bffu;  // rounds to 65520 or more
  if (rest < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(rest) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(scaled) - 0x3f000000u);
  }
  return sign | static_cast<uint16_t>((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

}  // namespace oscar
