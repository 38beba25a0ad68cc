// manifest.json beside rotation files: the provenance that a v1 .pt cannot hold, and what was checked.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "libcalib/fit.h"

namespace oscar {

struct ManifestFile {
  std::string name, side, format, objective, sha256;
};
// "oscar-rotations/1" (docs/file-formats.md). Deterministic: no times, no paths.
nlohmann::ordered_json manifest_json(const Provenance& provenance, const FitOptions& options, const FitResult& result,
                                     const std::vector<ManifestFile>& files);
void write_manifest(const std::filesystem::path& directory, const Provenance& provenance, const FitOptions& options,
                    const FitResult& result, const std::vector<ManifestFile>& files);
std::vector<ManifestFile> read_manifest(const std::filesystem::path& directory);  // empty when there is none

}  // namespace oscar
