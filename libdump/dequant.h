// ggml block types to float32, exactly as ggml defines them: the same bits, but for sign and payload of a
// NaN.
#pragma once
#include "formats/gguf.h"

namespace oscar {

// True for F32, F16, BF16 and the quantised types that llama.cpp writes, without the IQ types below four
// bits.
bool can_dequantise(const GgmlType& type);
// `count` elements, a multiple of type.block; std::invalid_argument for another type.
void dequantise(const GgmlType& type, const std::byte* blocks, int64_t count, float* out);
std::string known_types();                  // "F32, F16, …" for messages
std::string refusal(const GgmlType& type);  // what the type is called, the known ones, and what to do

}  // namespace oscar
