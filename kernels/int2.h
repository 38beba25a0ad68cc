// THE packed INT2 layout of the serving engine ("sglang"), and the scalar rule that defines it.
//
// One cache row is one token of one KV head, D elements, D a multiple of 4, in G groups of D/G contiguous elements:
//
//   codes       (D/4) uint8    byte i holds elements   i      i+D/4   i+2D/4   i+3D/4
//                              in bits                 0-1    2-3     4-5      6-7
//   scale_zero  (2G) float32   scale_0, zero_0, scale_1, zero_1, …
//
// so a row of D = 128, G = 1 costs 32 + 8 bytes: 2.5 bits an element.
//
// Rule (prefill path), all in float32 unless said otherwise:
//   1. the row is rounded to bfloat16 (to nearest, ties to even) when `round_bf16`
//   2. clip: i = min(trunc(ratio * D) computed in double, D - 1); tau = the i-th smallest |x| of the WHOLE row (0-based);
//      x = clamp(x, -tau, tau). ratio <= 0 means no clip.
//   3. per group: scale = max(max - min, 1e-8) / 3, zero = -min / scale, code = trunc(x / scale + zero + 0.5),
//      clamped to 0..3
//   4. read back: (code - zero) * scale
// A NaN sorts above infinity in step 2, is not seen by min and max, and gets code 0; a row with a NaN or an infinity reads
// back as anything, but as the same bytes from every implementation.
#pragma once
#include <cstdint>

namespace oscar::int2 {

struct Rule {
  int dim;            // D
  int groups = 1;     // G, divides D
  double clip = 0;    // ratio; <= 0: off
  bool round_bf16 = true;
};

// Index of step 2, or -1 when clipping is off.
int clip_index(double ratio, int dim);

// n rows of D floats at `rows` (row-major, contiguous) into codes (n, D/4) and scale_zero (n, 2G).
void encode_reference(const Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero);
// Rows as float32, step 4 exactly.
void decode_reference(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n, float* rows);

// The same bytes as the reference, with SIMD and OpenMP.
void encode(const Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero);
void decode(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n, float* rows);

}  // namespace oscar::int2
