// The precision of a run. Statistics are always float64 sums of float32 values.
#pragma once
#include <cstdint>
#include <string_view>

#include "formats/dtype.h"

namespace oscar {

enum class Precision : uint8_t { Float32, BFloat16, Float16 };
constexpr const char* name(Precision precision) {
  return precision == Precision::Float32    ? "float32"
         : precision == Precision::BFloat16 ? "bfloat16"
                                            : "float16";
}
// Of such a name; float32 for any other.
inline Precision precision_of(std::string_view text) {
  for (const Precision precision : {Precision::BFloat16, Precision::Float16}) {
    if (text == name(precision)) return precision;
  }
  return Precision::Float32;
}
// What rows of q, k and v are stored as.
constexpr DType dtype_of(Precision precision) {
  return precision == Precision::Float32    ? DType::F32
         : precision == Precision::BFloat16 ? DType::BF16
                                            : DType::F16;
}

}  // namespace oscar
