// Rotation files: .pt v1 (per layer) and v2 (per KV head), and .safetensors with the same content and provenance.
#pragma once
#include <filesystem>

#include "libcalib/rotation.h"

namespace oscar {

// By extension. Values are float32 in every format. K or V is decided by the objective, then by the file name; when both are
// silent std::invalid_argument says so. Every layer id may be int or str; storages may be shared.
RotationSet read_rotations(const std::filesystem::path& path);
void write_rotations_pt(const std::filesystem::path& path, const RotationSet& set);
void write_rotations_safetensors(const std::filesystem::path& path, const RotationSet& set, const Provenance& provenance);

// A directory of rotations/ as oscar-fit writes it: k_rotation_*.pt (or .safetensors) and v_rotation_*; exactly one of
// each is expected, manifest.json says which when there are several.
struct RotationPair {
  RotationSet k, v;
};
RotationPair read_rotation_directory(const std::filesystem::path& path);

}  // namespace oscar
