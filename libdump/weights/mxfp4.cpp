#include "libdump/weights/mxfp4.h"

#include <array>
#include <cmath>
#include <limits>

namespace oscar::mxfp4 {
namespace {

using Values = std::array<float, 16>;  // of the codes under one scale

std::array<Values, 256> make_table() {
  constexpr Values kE2m1{0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};
  std::array<Values, 256> table{};
  for (int scale = 0; scale < 256; ++scale) {
    for (size_t code = 0; code < 16; ++code) {
      table[static_cast<size_t>(scale)][code] =
          scale == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(kE2m1[code], scale - 127);
    }
  }
  return table;
}

}  // namespace

void decode(const std::byte* codes, const std::byte* scales, int64_t blocks, float* out) {
  static const std::array<Values, 256> table = make_table();
  for (int64_t b = 0; b < blocks; ++b) {
    const Values& values = table[std::to_integer<size_t>(scales[b])];
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      const auto pair = std::to_integer<size_t>(*codes++);
      *out++ = values[pair & 15];
      *out++ = values[pair >> 4];
    }
  }
}

}  // namespace oscar::mxfp4
