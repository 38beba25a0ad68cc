// To bfloat16, ties to even; finite numbers only.
#pragma once
#include <bit>
#include <cstdint>

namespace oscar::cuda {

inline uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace oscar::cuda
