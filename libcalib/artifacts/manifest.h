// manifest.json beside what a fit wrote: the provenance that a v1 .pt cannot hold, and what was checked.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "libcalib/fit.h"

namespace oscar {

struct ManifestFile {
  std::string name, side, format, objective, sha256;
};
// What one fit was: everything that its manifest says, but for the files.
struct FitRecord {
  Provenance provenance;
  Method method;
  bool allow_undersampled = false;
  FitResult result;
};
// "oscar-rotations/1" (docs/file-formats.md). Deterministic: no times, no paths.
nlohmann::ordered_json manifest_json(const FitRecord& record, const std::vector<ManifestFile>& files);
void write_manifest(const std::filesystem::path& directory, const FitRecord& record,
                    const std::vector<ManifestFile>& files);
std::vector<ManifestFile> read_manifest(const std::filesystem::path& directory);  // empty when there is none

}  // namespace oscar
