#include "kernels/vector_pages.h"

#include <cstring>

#include "kernels/half.h"

namespace oscar {
namespace {

int code_byte(bool keys, int dim, int size, int token, int group) {
  return keys ? vector_key_byte(dim, size, token, group) : vector_value_byte(size, token, group);
}

}  // namespace

void pack_vector(bool keys, int dim, int size, const uint8_t* codes, const float* scales, int first, int n,
                 uint8_t* block) {
  const int groups = dim / size;
  for (int r = 0; r < n; ++r) {
    for (int group = 0; group < groups; ++group) {
      block[code_byte(keys, dim, size, first + r, group)] = codes[r * groups + group];
    }
    if (scales) {
      const uint16_t bits = float_to_half(scales[r]);
      std::memcpy(block + vector_scale_byte(dim, size, first + r), &bits, sizeof bits);
    }
  }
}

void unpack_vector(bool keys, int dim, int size, bool norm, const uint8_t* block, const CodebookView& book,
                   int head, int first, int n, float* rows) {
  const int groups = dim / size;
  const float* group_scales = book.scales + int64_t{head} * groups;
  for (int r = 0; r < n; ++r) {
    float scale = 1;
    if (norm) {
      uint16_t bits;
      std::memcpy(&bits, block + vector_scale_byte(dim, size, first + r), sizeof bits);
      scale = half_to_float(bits);
    }
    for (int group = 0; group < groups; ++group) {
      const int code = block[code_byte(keys, dim, size, first + r, group)];
      const int8_t* word = book.words + (int64_t{head} * kVectorWords + code) * dim + group * size;
      for (int i = 0; i < size; ++i) {
        rows[r * dim + group * size + i] = static_cast<float>(word[i]) * group_scales[group] * scale;
      }
    }
  }
}

}  // namespace oscar
