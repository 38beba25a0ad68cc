// MXFP4 as safetensors checkpoints hold it (OCP Microscaling Formats 1.0): blocks of 32 values of four bits,
// e2m1, the first of two in the low half of a byte, under one scale of eight bits, e8m0.
#pragma once
#include <cstddef>
#include <cstdint>

namespace oscar::mxfp4 {

constexpr int64_t kBlock = 32;

// codes (blocks, 16), scales (blocks) -> out (blocks, 32): e2m1 times 2^(scale - 127), as float32 rounds it:
// exact, and infinite for the largest at scale 254. The scale 255 makes a block NaN.
void decode(const std::byte* codes, const std::byte* scales, int64_t blocks, float* out);

}  // namespace oscar::mxfp4
