#include "libcalib/codeword_storage.h"

#include <algorithm>
#include <cmath>

#include "formats/dtype.h"

namespace oscar {
namespace {

float largest(const std::vector<float>& words) {
  float most = 0;
  for (const float word : words) most = std::max(most, std::abs(word));
  return most;
}

// Up to 12 bits of significand: 127 of it is exact in float32.
float short_scale(float scale) {
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);
  return std::ldexp(std::ceil(fraction * 4096), exponent - 12);
}

// Every finite value of an fp8 format, ascending.
std::vector<float> fp8_values(DType dtype) {
  std::vector<float> values;
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::byte>(bits);
    float value = 0;
    to_float(dtype, &byte, 1, &value);
    if (std::isfinite(value)) values.push_back(value);
  }
  std::ranges::sort(values);
  return values;
}

// Beyond the largest: that.
void round_fp16(std::vector<float>& words) {
  for (float& word : words) word = f16_to_float(float_to_f16(std::clamp(word, -65504.0f, 65504.0f)));
}

// To the nearest; of two, the smaller in magnitude.
float nearest(const std::vector<float>& sorted, float x) {
  const auto above = std::ranges::lower_bound(sorted, x);
  if (above == sorted.begin()) return *above;
  if (above == sorted.end()) return sorted.back();
  const float high = *above, low = *(above - 1);
  if (high - x == x - low) return std::abs(high) < std::abs(low) ? high : low;
  return high - x < x - low ? high : low;
}

// To fp16 first, as words are in a file: the largest then stays what it is, and with it the scale.
void round_fp8(std::vector<float>& words, DType dtype) {
  round_fp16(words);
  const auto values = fp8_values(dtype);
  const float scale = largest(words) / values.back();
  if (!(scale > 0)) return;
  for (float& word : words) word = nearest(values, word / scale) * scale;
}

}  // namespace

void round_words(std::vector<float>& words, Stored stored) {
  if (stored == Stored::E4M3) round_fp8(words, DType::F8_E4M3);
  if (stored == Stored::E5M2) round_fp8(words, DType::F8_E5M2);
  if (stored != Stored::Int8) return round_fp16(words);
  const float most = largest(words);
  constexpr float kLeast = 0x1p-100f;  // the products below would no longer be exact
  if (most < kLeast) {
    std::ranges::fill(words, 0.0f);
    return;
  }
  const float scale = short_scale(most / 127);
  for (float& word : words) word = std::round(word / scale) * scale;
  // Rounding the scale up can leave 126 as the largest: the scale is then found from the words no more, so
  // one word is kept at 127 of it.
  if (largest(words) < 127 * scale) {
    const auto top = std::ranges::max_element(words, {}, [](float word) { return std::abs(word); });
    *top = std::copysign(127 * scale, *top);
  }
}

Int8Words int8_words(const std::vector<float>& words) {
  Int8Words result{{}, largest(words) / 127};
  if (result.scale == 0) result.scale = 1;
  if (short_scale(result.scale) != result.scale) return {};
  for (const float word : words) {
    const float value = std::round(word / result.scale);
    if (value * result.scale != word) return {};
    result.values.push_back(static_cast<int8_t>(value));
  }
  return result;
}

}  // namespace oscar
