#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/int2.h"

namespace oscar::int2 {
namespace {

// To nearest, ties to even; a NaN becomes a quiet one.
float round_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return std::bit_cast<float>((bits | 0x400000u) & 0xffff0000u);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

// Magnitudes are ordered as bit patterns: the order of floats, and a total one when there are NaNs (above
// infinity).
float nth_magnitude(const std::vector<float>& row, int index) {
  std::vector<uint32_t> bits(row.size());
  std::ranges::transform(row, bits.begin(), [](float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; });
  std::ranges::nth_element(bits, bits.begin() + index);
  return std::bit_cast<float>(bits[index]);
}

}  // namespace

int clip_index(double ratio, int dim) {
  if (!(ratio > 0)) return -1;
  return static_cast<int>(std::min(std::trunc(ratio * dim), dim - 1.0));
}

void encode_reference(const Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero) {
  const int dim = rule.dim, size = dim / rule.groups, quarter = dim / 4;
  const int clip = clip_index(rule.clip, dim);
  std::vector<float> x(dim);
  for (int64_t r = 0; r < n; ++r, codes += quarter, scale_zero += 2 * rule.groups) {
    for (int i = 0; i < dim; ++i)
      x[i] = rule.round_bf16 ? round_to_bf16(rows[r * dim + i]) : rows[r * dim + i];
    if (clip >= 0) {
      const float tau = nth_magnitude(x, clip);
      for (float& value : x) value = value < -tau ? -tau : value > tau ? tau : value;
    }
    std::fill_n(codes, quarter, uint8_t{0});
    for (int g = 0; g < rule.groups; ++g) {
      float low = std::numeric_limits<float>::infinity(), high = -low;
      for (int i = g * size; i < (g + 1) * size; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
      }
      low += 0.0f;  // -0 becomes 0, so that the zero point does not depend on the order of the comparisons
      const float range = high - low;
      const float scale = (range > 1e-8f ? range : 1e-8f) / 3.0f, zero = -low / scale;
      scale_zero[2 * g] = scale;
      scale_zero[2 * g + 1] = zero;
      for (int i = g * size; i < (g + 1) * size; ++i) {
        float level = x[i] / scale + zero + 0.5f;
        level = level > 0.0f ? level : 0.0f;
        level = level < 3.0f ? level : 3.0f;
        codes[i % quarter] |= static_cast<uint8_t>(static_cast<int>(level) << (2 * (i / quarter)));
      }
    }
  }
}

void decode_reference(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n,
                      float* rows) {
  const int size = dim / groups, quarter = dim / 4;
  for (int64_t r = 0; r < n; ++r) {
    for (int i = 0; i < dim; ++i) {
      const int code = codes[r * quarter + i % quarter] >> (2 * (i / quarter)) & 3;
      const float* sz = scale_zero + 2 * (r * groups + i / size);
      rows[r * dim + i] = (static_cast<float>(code) - sz[1]) * sz[0];
    }
  }
}

}  // namespace oscar::int2
