// rotations/: one file of K, one of V (in one or both formats) and manifest.json.
#pragma once
#include "libcalib/artifacts/manifest.h"
#include "libcalib/artifacts/rotation_file.h"

namespace oscar {

enum class RotationFormat : uint8_t { Pt, SafeTensors };

// Writes what a fit gave and returns what the manifest lists. A directory that is not there yet appears whole or not at all;
// in one that is, every file is replaced atomically and manifest.json, which says which files belong together, comes last.
std::vector<ManifestFile> write_rotation_directory(const std::filesystem::path& directory, const Provenance& provenance,
                                                   const FitOptions& options, const FitResult& result,
                                                   const std::vector<RotationFormat>& formats);

}  // namespace oscar
