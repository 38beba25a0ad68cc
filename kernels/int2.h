// THE packed INT2 layouts, "sglang" (the serving engine's) and "native" (ours), and the scalar rule that
// fills them.
//
// sglang: one cache row is one token of one KV head, D elements, D a multiple of 4, in G groups of D/G
// contiguous elements:
//
//   codes       (D/4) uint8    byte i holds elements   i      i+D/4   i+2D/4   i+3D/4
//                              in bits                 0-1    2-3     4-5      6-7
//   scale_zero  (2G) float32   scale_0, zero_0, scale_1, zero_1, …
//
// so a row of D = 128, G = 1 costs 32 + 8 bytes: 2.5 bits an element.
//
// Rule (prefill path), all in float32 unless said otherwise:
//   1. the row is rounded to bfloat16 (to nearest, ties to even) when `round_bf16`
//   2. clip: i = min(trunc(ratio * D) computed in double, D - 1); tau = the i-th smallest |x| of the WHOLE
//      row (0-based); x = clamp(x, -tau, tau). ratio <= 0 means no clip.
//   3. per group: scale = max(max - min, 1e-8) / 3, zero = -min / scale,
//      code = trunc(x / scale + zero + 0.5), clamped to 0..3
//   4. read back: (code - zero) * scale
// A NaN sorts above infinity in step 2, is not seen by min and max, and gets code 0; a row with a NaN or an
// infinity reads back as anything, but as the same bytes from every implementation.
//
// native: a page holds 64 tokens, for one KV head after the other a block of keys, then one of values, each
//
//   codes 16 D bytes | metadata 256 G bytes
//
// in the order in which a warp of a GPU reads them: every 16 bytes are one lane's load, and what it reads are
// operands of the matrix unit without a shift between them. Lane = 4 g + t; g, r in 0..7; t, n, j in 0..3.
//
//   keys      token 8 g + r. Units of 64 channels, u = i / 64: byte 4 t + j of a token's 16 holds channels
//             64 u + 16 f + 4 t + j in bits 2 f, 2 f + 1 (f = 0..3), and lies at
//                 1024 u + 512 (r / 4) + 16 (4 g + t) + 4 (r % 4) + j
//             A last unit of 32 channels (D = 96): byte 4 h + j of 8 (h = 0, 1) holds channels
//             64 u + 8 f + 4 h + j, at
//                 1024 u + 64 g + 32 h + 4 r + j
//   values    units of 32 channels, u = i / 32: channel 32 u + 8 f + g of token 16 t + 4 n + j in bits
//             2 f, 2 f + 1 of the byte at
//                 512 u + 16 (4 g + t) + 4 n + j
//   metadata  of group h, token 8 g + r: float16 scale, float16 minimum, at
//                 16 D + 256 h + 128 (r / 4) + 16 g + 4 (r % 4)       read back: code * scale + minimum
//
// A row of D = 128, G = 1 costs 2.25 bits an element. Codes are those of the rule above, whatever the
// metadata is rounded to.
#pragma once
#include <cstdint>

namespace oscar::int2 {

inline constexpr int kPageTokens = 64;

struct Place {
  int byte;   // from the start of the block of keys, or of values
  int shift;  // bits within it
};
constexpr Place native_key(int dim, int token, int channel) {
  const int g = token / 8, r = token % 8, u = channel / 64, c = channel % 64;
  if (dim % 64 == 32 && u == dim / 64) {
    return {1024 * u + 64 * g + 32 * (c / 4 % 2) + 4 * r + c % 4, c / 8 * 2};
  }
  return {1024 * u + 512 * (r / 4) + 16 * (4 * g + c / 4 % 4) + 4 * (r % 4) + c % 4, c / 16 * 2};
}
constexpr Place native_value(int token, int channel) {
  const int u = channel / 32, f = channel % 32 / 8, g = channel % 8;
  return {512 * u + 16 * (4 * g + token / 16) + token % 16, 2 * f};
}
constexpr int native_metadata(int dim, int token, int group) {
  return 16 * dim + 256 * group + 128 * (token % 8 / 4) + 16 * (token / 8) + 4 * (token % 4);
}
constexpr int native_bytes(int dim, int groups) {
  return 16 * dim + 256 * groups;
}

struct Rule {
  int dim;          // D
  int groups = 1;   // G, divides D
  double clip = 0;  // ratio; <= 0: off
  bool round_bf16 = true;
};

// Index of step 2, or -1 when clipping is off.
int clip_index(double ratio, int dim);

// n rows of D floats at `rows` (row-major, contiguous) into codes (n, D/4) and scale_zero (n, 2G).
void encode_reference(const Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero);
// Rows as float32, step 4 exactly.
void decode_reference(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n,
                      float* rows);

// sglang rows, at most 64, into the tokens [first, first + n) of a native block of keys (or of values), and
// back. Scales and minima are rounded to float16, ties to even; those beyond it become its largest. The rest
// of the block is left alone.
void pack_native(bool keys, int dim, int groups, const uint8_t* codes, const float* scale_zero, int first,
                 int n, uint8_t* block);
void unpack_native(bool keys, int dim, int groups, const uint8_t* block, int first, int n, float* rows);

// The same bytes as the reference, with SIMD and OpenMP.
void encode(const Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero);
void decode(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n, float* rows);

}  // namespace oscar::int2
