// codes.safetensors, schema "oscar-codes/1" (docs/file-formats.md): the codes of a whole cache, K and V,
// every method.
#pragma once
#include <filesystem>

#include "libcalib/codes.h"

namespace oscar {

inline constexpr const char* kCodesFile = "codes.safetensors";

// Maps and means are float32, so that what is read back is what an engine computes with; codewords are int8
// with one scale a group, fp16 or float32, whichever holds them exactly. Atomic.
void write_codes(const std::filesystem::path& path, const CacheCodes& codes, const Provenance& provenance);
// std::invalid_argument when there is no such file, std::runtime_error when it is damaged or something else.
CacheCodes read_codes(const std::filesystem::path& path);

}  // namespace oscar
