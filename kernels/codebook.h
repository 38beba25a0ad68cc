// The nearest codeword of many short vectors: the hot loop of training and encoding vector codes.
#pragma once
#include <cstdint>

namespace oscar {

// index[r * index_stride] = argmin over c of |x_r - c|^2, the lowest c wins ties;  x_r = rows + r * stride, g
// floats. distance[r] = |x_r - c|^2 of the winner, unless distance == nullptr.
//
//   codebook  (count, g) contiguous, 1 <= count <= 65536, 1 <= g <= 64
//
// Distances are those of double arithmetic, the sum over i in order of (double(x_i) - c_i)^2: a float32
// search decides only where its rounding cannot matter. So the bytes are those of the reference at every SIMD
// level, and however the rows are split. Close calls cost time: codewords that many rows cannot tell apart
// make the search slow, not wrong. Rows and codewords must be finite, their squared norms below 1e37; a NaN
// in a row makes that row's result any codeword. One thread.
void nearest_codeword(const float* rows, int64_t stride, int64_t n, int g, const float* codebook, int count,
                      uint16_t* index, int64_t index_stride, float* distance);
void nearest_codeword_reference(const float* rows, int64_t stride, int64_t n, int g, const float* codebook,
                                int count, uint16_t* index, int64_t index_stride, float* distance);

}  // namespace oscar
