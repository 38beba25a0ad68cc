#include "formats/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/error.h"

namespace oscar {

namespace {

// In the order of the enum.
constexpr DTypeInfo kTable[] = {
    {DType::F64, 64, "F64", "DoubleStorage", "float64"},
    {DType::F32, 32, "F32", "FloatStorage", "float32"},
    {DType::F16, 16, "F16", "HalfStorage", "float16"},
    {DType::BF16, 16, "BF16", "BFloat16Storage", "bfloat16"},
    {DType::F8_E4M3, 8, "F8_E4M3", "", "float8_e4m3fn"},
    {DType::F8_E5M2, 8, "F8_E5M2", "", "float8_e5m2"},
    {DType::I64, 64, "I64", "LongStorage", "int64"},
    {DType::I32, 32, "I32", "IntStorage", "int32"},
    {DType::I16, 16, "I16", "ShortStorage", "int16"},
    {DType::I8, 8, "I8", "CharStorage", "int8"},
    {DType::U64, 64, "U64", "", "uint64"},
    {DType::U32, 32, "U32", "", "uint32"},
    {DType::U16, 16, "U16", "", "uint16"},
    {DType::U8, 8, "U8", "ByteStorage", "uint8"},
    {DType::Bool, 8, "BOOL", "BoolStorage", "bool"},
    {DType::F8_E4M3FNUZ, 8, "F8_E4M3FNUZ", "", "float8_e4m3fnuz"},
    {DType::F8_E5M2FNUZ, 8, "F8_E5M2FNUZ", "", "float8_e5m2fnuz"},
    {DType::F8_E8M0, 8, "F8_E8M0", "", "float8_e8m0fnu"},
    {DType::F6_E2M3, 6, "F6_E2M3", "", ""},
    {DType::F6_E3M2, 6, "F6_E3M2", "", ""},
    {DType::F4, 4, "F4", "", ""},
    {DType::C64, 64, "C64", "ComplexFloatStorage", "complex64"},
};
constexpr bool in_enum_order() {
  for (size_t i = 0; i < std::size(kTable); ++i) {
    if (static_cast<size_t>(kTable[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_enum_order());

const DTypeInfo* find(std::string_view DTypeInfo::*column, std::string_view name) {
  const auto row = std::ranges::find(kTable, name, column);
  return name.empty() || row == std::end(kTable) ? nullptr : row;
}

// float8 e4m3 "fn": no infinities, 0x7f and 0xff are NaN, largest 448.
float e4m3_to_float(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  float value = exponent == 0 ? mantissa * 0x1p-9f : std::ldexp(8.0f + mantissa, exponent - 10);
  if ((bits & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return bits & 0x80 ? -value : value;
}

// "fnuz": one NaN where the others have minus zero, no infinities.
template <int mantissa_bits, int bias>
float fnuz_to_float(uint8_t bits) {
  if (bits == 0x80) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const auto significand = static_cast<float>(exponent ? mantissa + (1 << mantissa_bits) : mantissa);
  const float value = std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
  return bits & 0x80 ? -value : value;
}

// A scale, a power of two: 255 is NaN.
float e8m0_to_float(uint8_t bits) {
  return bits == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, bits - 127);
}

template <typename To>
void unpack_f4(const std::byte* from, size_t count, To* to) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (size_t i = 0; i < count; ++i)
    to[i] = kValues[static_cast<uint8_t>(from[i / 2]) >> (i % 2 ? 4 : 0) & 15];
}

template <typename Stored, typename To, typename Convert>
void each(const std::byte* from, size_t count, To* to, Convert convert) {
  for (size_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, from + i * sizeof(Stored), sizeof(Stored));
    to[i] = static_cast<To>(convert(value));
  }
}

template <typename To>
void convert(DType dtype, const std::byte* from, size_t count, To* to) {
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case DType::F64:
      return each<double>(from, count, to, same);
    case DType::F32:
      return each<float>(from, count, to, same);
    case DType::F16:
      return each<uint16_t>(from, count, to, f16_to_float);
    case DType::BF16:
      return each<uint16_t>(from, count, to, bf16_to_float);
    case DType::F8_E4M3:
      return each<uint8_t>(from, count, to, e4m3_to_float);
    // e5m2 is the upper half of a float16.
    case DType::F8_E5M2:
      return each<uint8_t>(from, count, to,
                           [](uint8_t v) { return f16_to_float(static_cast<uint16_t>(v << 8)); });
    case DType::I64:
      return each<int64_t>(from, count, to, same);
    case DType::I32:
      return each<int32_t>(from, count, to, same);
    case DType::I16:
      return each<int16_t>(from, count, to, same);
    case DType::I8:
      return each<int8_t>(from, count, to, same);
    case DType::U64:
      return each<uint64_t>(from, count, to, same);
    case DType::U32:
      return each<uint32_t>(from, count, to, same);
    case DType::U16:
      return each<uint16_t>(from, count, to, same);
    case DType::U8:
      return each<uint8_t>(from, count, to, same);
    case DType::Bool:
      return each<uint8_t>(from, count, to, [](uint8_t v) { return v != 0; });
    case DType::F8_E4M3FNUZ:
      return each<uint8_t>(from, count, to, fnuz_to_float<3, 8>);
    case DType::F8_E5M2FNUZ:
      return each<uint8_t>(from, count, to, fnuz_to_float<2, 16>);
    case DType::F8_E8M0:
      return each<uint8_t>(from, count, to, e8m0_to_float);
    case DType::F4:
      return unpack_f4(from, count, to);
    case DType::F6_E2M3:
    case DType::F6_E3M2:
    case DType::C64:
      throw invalid("values of dtype {} cannot be converted to float", info(dtype).name);
  }
}

template <typename Stored, typename Convert>
void store(const float* from, size_t count, std::byte* to, Convert convert) {
  for (size_t i = 0; i < count; ++i) {
    const Stored value = convert(from[i]);
    std::memcpy(to + i * sizeof(Stored), &value, sizeof(Stored));
  }
}

}  // namespace

std::span<const DTypeInfo> dtype_table() {
  return kTable;
}
const DTypeInfo& info(DType dtype) {
  return kTable[static_cast<size_t>(dtype)];
}
const DTypeInfo* find_dtype(std::string_view name) {
  return find(&DTypeInfo::name, name);
}
const DTypeInfo* find_torch_storage(std::string_view name) {
  return find(&DTypeInfo::torch, name);
}
const DTypeInfo* find_torch_dtype(std::string_view name) {
  return find(&DTypeInfo::torch_name, name);
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    const auto magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
    return std::bit_cast<float>(sign | magnitude);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_f16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude <
             0x38800000u) {  // below 2^-14: adding 0.5, whose ulp is 2^-24, rounds to the subnormal grid
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  }
  return static_cast<uint16_t>(sign | half);
}

void to_float(DType dtype, const std::byte* from, size_t count, float* to) {
  convert(dtype, from, count, to);
}
void to_double(DType dtype, const std::byte* from, size_t count, double* to) {
  convert(dtype, from, count, to);
}

uint8_t float_to_e4m3(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  if (std::isnan(x)) return sign | 0x7f;
  const float magnitude = std::min(std::fabs(x), 448.0f);
  if (magnitude < 0x1p-6f)  // subnormal: multiples of 2^-9; 8 of them are the smallest normal number
    return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f));
  auto bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffff + (bits >> 20 & 1);
  return sign | static_cast<uint8_t>((bits >> 20) - (120 << 3));
}

void from_float(DType dtype, const float* from, size_t count, std::byte* to) {
  switch (dtype) {
    case DType::F64:
      return store<double>(from, count, to, [](float x) { return double{x}; });
    case DType::F32:
      return store<float>(from, count, to, [](float x) { return x; });
    case DType::F16:
      return store<uint16_t>(from, count, to, float_to_f16);
    case DType::BF16:
      return store<uint16_t>(from, count, to, float_to_bf16);
    case DType::F8_E4M3:
      return store<uint8_t>(from, count, to, float_to_e4m3);
    default:
      throw invalid("float values can be stored as F64, F32, F16, BF16 or F8_E4M3, not as {}",
                    info(dtype).name);
  }
}

}  // namespace oscar
