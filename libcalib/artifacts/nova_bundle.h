// codebook.pt, the bundle that NOVA-KV's engine reads: transforms, means and 4x8 codebooks of the keys
// (docs/file-formats.md).
#pragma once
#include <filesystem>

#include "libcalib/codes.h"

namespace oscar {

inline constexpr const char* kNovaFile = "codebook.pt";

// Keys that the engine can read: per head, groups of 4 channels and 8 bits, rows divided by their RMS.
bool is_nova_bundle(const SideCodes& codes);
// Layers by their order, as the engine counts them. Words are kept in fp16, not yet rounded to fp8: the
// engine does that itself, and twice would lose. Atomic.
void write_nova_bundle(const std::filesystem::path& path, const SideCodes& codes);

}  // namespace oscar
