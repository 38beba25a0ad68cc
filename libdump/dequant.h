// ggml block types to float32, exactly as ggml defines them.
#pragma once
#include "formats/gguf.h"

namespace oscar {

// True for F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q6_K.
bool can_dequantise(const GgmlType& type);
// `count` elements, a multiple of type.block; std::invalid_argument for another type.
void dequantise(const GgmlType& type, const std::byte* blocks, int64_t count, float* out);
std::string known_types();  // "F32, F16, …" for messages

}  // namespace oscar
