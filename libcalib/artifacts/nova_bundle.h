// codebook.pt, the bundle that NOVA-KV's engine reads: transforms, means and 4x8 codebooks of the keys.
// Source of the format: vq_codebook.py, which reads it, and fit_vq_codebook.py in Amir-zsh/nova-kv
// (docs/file-formats.md).
#pragma once
#include <filesystem>

#include "libcalib/codes.h"

namespace oscar {

inline constexpr const char* kNovaFile = "codebook.pt";

// Keys as the engine is meant to have them: per head, groups of 4 channels and 8 bits, rows divided by their
// RMS.
bool is_nova_bundle(const SideCodes& codes);
// Those, or the same without the norm. Layers by their order, as the engine counts them. Words are kept in
// fp16, not yet rounded to fp8: the engine does that itself, and twice would lose. std::invalid_argument for
// other keys. Atomic.
void write_nova_bundle(const std::filesystem::path& path, const SideCodes& codes);

// The keys of a bundle with words as the engine loads them, fp16, whatever float they are stored as; its
// rounding to fp8 is not done here. `layers` are the global ids of the bundle's layers 0, 1, ... in order;
// without them the numbers are taken as they are. std::runtime_error for what the engine refuses, for numbers
// that are not finite and an inverse that is none; std::invalid_argument for ids that do not fit.
SideCodes read_nova_bundle(const std::filesystem::path& path, const std::vector<int>& layers = {});

}  // namespace oscar
