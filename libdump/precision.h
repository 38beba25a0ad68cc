// The precision of a run. Statistics are always float64 sums of float32 values.
#pragma once
#include <cstdint>

namespace oscar {

enum class Precision : uint8_t { Float32, BFloat16 };
constexpr const char* name(Precision precision) { return precision == Precision::Float32 ? "float32" : "bfloat16"; }

}  // namespace oscar
