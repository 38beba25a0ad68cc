// Element types of every file format, and their conversion to and from float.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace oscar {

enum class DType : uint8_t {
  F64,
  F32,
  F16,
  BF16,
  F8_E4M3,
  F8_E5M2,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  Bool,
  // What only checkpoints hold. HDF5 and .npy have no type for them.
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  F8_E8M0,
  F6_E2M3,
  F6_E3M2,
  F4,
  C64
};

struct DTypeInfo {
  DType dtype;
  size_t bits;            // per element
  std::string_view name;  // safetensors spelling, used in messages: "F32", "BF16", …
  std::string_view
      torch;  // class name of its storage in a .pt pickle: "FloatStorage", …; empty where torch has none
  std::string_view torch_name;  // of the torch dtype: "float32", …; empty where torch has none
  // Bytes per element; 0 for elements that share a byte (F4, F6).
  constexpr size_t size() const { return bits % 8 ? 0 : bits / 8; }
};

// One table, read in both directions.
std::span<const DTypeInfo> dtype_table();
const DTypeInfo& info(DType dtype);
const DTypeInfo* find_dtype(std::string_view name);          // by safetensors name, nullptr if unknown
const DTypeInfo* find_torch_storage(std::string_view name);  // by storage class name, nullptr if unknown
const DTypeInfo* find_torch_dtype(std::string_view name);    // by torch dtype name, nullptr if unknown

// bfloat16: the upper half of a float32. Rounding is to nearest, ties to even; NaN stays NaN.
inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
inline uint16_t float_to_bf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
// OCP float8 e4m3 (no infinities): to nearest, ties to even; what is larger than 448 becomes 448, NaN stays
// NaN.
uint8_t float_to_e4m3(float x);
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float x);  // to nearest, ties to even

// `count` elements of `dtype` at `from` (any alignment) as float / double. Integers and Bool convert by
// value; F4 is OCP E2M1, the first of two elements in the low half of a byte. F6 and C64 are carried, not
// converted: std::invalid_argument.
void to_float(DType dtype, const std::byte* from, size_t count, float* to);
void to_double(DType dtype, const std::byte* from, size_t count, double* to);
// Float to F64, F32, F16, BF16 or F8_E4M3 only; anything else is std::invalid_argument.
void from_float(DType dtype, const float* from, size_t count, std::byte* to);

}  // namespace oscar
