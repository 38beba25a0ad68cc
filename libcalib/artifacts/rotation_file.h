// Rotation files: .pt v1 (per layer), v2 (per KV head) and v3 (with means, or maps that are not orthogonal),
// and .safetensors with the same content and provenance (docs/file-formats.md). A v2 file of ours also holds
// `eigenvalues` [H, d], which the published ones leave out.
#pragma once
#include <filesystem>

#include "libcalib/rotation.h"

namespace oscar {

// By extension. Values are float32 in every format. K or V is decided by the objective, then by the file
// name; when both are silent std::invalid_argument says so. Every layer id may be int or str; storages may be
// shared; eigenvalues may be None or left out; format_version, layer_id and blocks about the run are not
// looked at. What is returned has passed check(). `v_mean` of a v3 file is ours: the engines know means of
// keys only.
RotationSet read_rotations(const std::filesystem::path& path);
// "k_rotation_qqt_r_h_pbr", "v_rotation_hadamard", "k_rotation_perhead": the published file names, without
// extension.
std::string rotation_file_stem(const RotationSet& set);
// Provenance and the number of query heads go into the block `calibration` of version 3 alone, where they are
// known (tokens > 0, q_heads > 0); versions 1 and 2 have no place for them.
void write_rotations_pt(const std::filesystem::path& path, const RotationSet& set,
                        const Provenance& provenance = {}, int q_heads = 0);
void write_rotations_safetensors(const std::filesystem::path& path, const RotationSet& set,
                                 const Provenance& provenance);

// A directory of rotations/ as oscar-fit writes it: k_rotation_*.pt (or .safetensors) and v_rotation_*;
// exactly one of each is expected, manifest.json says which when there are several. A directory with
// .oscar_*.pending.json, in which the serving engine has published one file of a pair and not yet the other,
// is std::runtime_error.
struct RotationPair {
  RotationSet k, v;
};
RotationPair read_rotation_directory(const std::filesystem::path& path);

}  // namespace oscar
