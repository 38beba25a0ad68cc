// Native pages of vector codes: a byte names the word of 4 or 8 neighbouring channels (`size`), N = D / size
// bytes a token.
//
// One block holds 64 tokens of one side (keys or values) of one KV head:
//
//   codes 64 N bytes | with `norm`: 64 float16, the factor of each token's words, not negative, in the order
//   of the tokens
//
// in the order in which a warp of a GPU reads them: every 16 bytes are one lane's load, and the order within
// a load is the one in which the warp looks words up without two lanes meeting in a bank of shared memory.
// Lane = 4 g + t; g, r in 0..7; t in 0..3.
//
//   keys    token 8 g + r, group 4 j + t. A lane has n = N / 4 codes of a token, 16 / n tokens a load:
//               512 (r n / 16) + 16 (4 g + t) + n (r % (16 / n)) + i        i = j ^ 2 (g % 2)      size 4
//                                                                           i = j ^ g % min(n, 4)  size 8
//   values  token 16 t + b, b in 0..15, group 8 j + g:
//               512 j' + 16 (4 g + t) + b            j' = j ^ (t / 2) size 4,   j' = j size 8
//
// A row of D = 128 costs 2 bits (size 4) or 1 bit (size 8) an element, and with `norm` 1/8 bit more.
#pragma once
#include <cstdint>

#include "kernels/decode.h"

namespace oscar {

inline constexpr int kVectorWords = 256;  // of a group's codebook

// dim: 64 or 128; size: 4 or 8; token: 0..63; group: 0..dim / size - 1. Bytes from the start of the block.
constexpr int vector_key_byte(int dim, int size, int token, int group) {
  const int g = token / 8, r = token % 8, t = group % 4, j = group / 4, n = dim / size / 4, tokens = 16 / n;
  const int i = size == 4 ? j ^ 2 * (g % 2) : j ^ g % (n < 4 ? n : 4);
  return 512 * (r / tokens) + 16 * (4 * g + t) + n * (r % tokens) + i;
}
constexpr int vector_value_byte(int size, int token, int group) {
  const int g = group % 8, t = token / 16, j = size == 4 ? group / 8 ^ t / 2 : group / 8;
  return 512 * j + 16 * (4 * g + t) + token % 16;
}
constexpr int vector_scale_byte(int dim, int size, int token) {
  return 64 * (dim / size) + 2 * token;
}
constexpr int vector_bytes(int dim, int size, bool norm) {
  return 64 * (dim / size + (norm ? 2 : 0));
}
constexpr int vector_size(CodeKind kind) {
  return kind == CodeKind::vector4x8 ? 4 : 8;
}

// Codes (n, dim / size) and, with a norm, scales (n), else nullptr, into the tokens [first, first + n) of a
// block, n at most 64 - first. Scales are rounded to float16. The rest of the block is left alone.
void pack_vector(bool keys, int dim, int size, const uint8_t* codes, const float* scales, int first, int n,
                 uint8_t* block);
// The way back: rows (n, dim) are word * group scale * token scale.
void unpack_vector(bool keys, int dim, int size, bool norm, const uint8_t* block, const CodebookView& book,
                   int head, int first, int n, float* rows);

}  // namespace oscar
