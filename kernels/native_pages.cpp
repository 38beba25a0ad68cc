#include <cstring>

#include "kernels/half.h"
#include "kernels/int2.h"

namespace oscar::int2 {
namespace {

Place place(bool keys, int dim, int token, int channel) {
  return keys ? native_key(dim, token, channel) : native_value(token, channel);
}

}  // namespace

void pack_native(bool keys, int dim, int groups, const uint8_t* codes, const float* scale_zero, int first,
                 int n, uint8_t* block) {
  const int quarter = dim / 4;
  for (int r = 0; r < n; ++r, codes += quarter) {
    for (int i = 0; i < dim; ++i) {
      const int code = codes[i % quarter] >> (2 * (i / quarter)) & 3;
      const Place at = place(keys, dim, first + r, i);
      block[at.byte] = static_cast<uint8_t>((block[at.byte] & ~(3 << at.shift)) | code << at.shift);
    }
    for (int group = 0; group < groups; ++group, scale_zero += 2) {
      const uint16_t metadata[2] = {float_to_half(scale_zero[0]),
                                    float_to_half(-scale_zero[1] * scale_zero[0])};
      std::memcpy(block + native_metadata(dim, first + r, group), metadata, sizeof metadata);
    }
  }
}

void unpack_native(bool keys, int dim, int groups, const uint8_t* block, int first, int n, float* rows) {
  for (int r = 0; r < n; ++r) {
    for (int i = 0; i < dim; ++i) {
      const Place at = place(keys, dim, first + r, i);
      uint16_t metadata[2];
      std::memcpy(metadata, block + native_metadata(dim, first + r, i / (dim / groups)), sizeof metadata);
      rows[r * dim + i] = static_cast<float>(block[at.byte] >> at.shift & 3) * half_to_float(metadata[0]) +
                          half_to_float(metadata[1]);
    }
  }
}

}  // namespace oscar::int2
