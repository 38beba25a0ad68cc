// What oscar-fit leaves behind: rotation files of K and V where the codes are rotations, codes.safetensors
// where they are more (another codec than the engine's default, codebooks, no map at all), codebook.pt where
// NOVA-KV's engine can read the keys, and manifest.json.
#pragma once
#include "libcalib/artifacts/manifest.h"
#include "libcalib/artifacts/rotation_file.h"

namespace oscar {

enum class RotationFormat : uint8_t { Pt, SafeTensors };

// Writes what a fit gave and returns what the manifest lists. A directory that is not there yet appears whole
// or not at all; in one that is, every file is replaced atomically and manifest.json, which says which files
// belong together, comes last.
std::vector<ManifestFile> write_fit_directory(const std::filesystem::path& directory, const FitRecord& record,
                                              const std::vector<RotationFormat>& formats);

// Whether the directory holds codes.safetensors, or rotation files of K and V, of the last fit: what an earlier method
// left there does not count.
bool has_codes(const std::filesystem::path& directory);
bool has_rotations(const std::filesystem::path& directory);

}  // namespace oscar
