// What rotation files have in common, whatever holds the tensors (.pt or .safetensors).
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "formats/tensor.h"
#include "libcalib/rotation.h"

namespace oscar::rotation_parts {

// A tensor of a layer by its name in the file, nullptr where there is none.
using FindTensor = std::function<const Tensor*(const char* name)>;
// Adds layer `id` with `rotation` [d, d], or [H, d, d] per KV head, `eigenvalues` [d] or [H, d], and what
// version 3 adds. std::runtime_error beginning with `where` for other shapes, and for a layer that is there
// already.
void add_layer(RotationSet& set, int id, const FindTensor& find, const std::string& where);
// The tensors of a layer by their names in the file. A map of keys that is not orthogonal is read through
// q_rotation, its inverse transpose; one of values is undone by o_rotation, its inverse.
std::vector<std::pair<std::string, Tensor>> layer_tensors(const RotationSet& set, const LayerRotation& layer);

// 1: a rotation a layer. 2: one per KV head. 3: with means or inverses, on every layer.
int version_of(const RotationSet& set);
std::string grouping_of(const RotationSet& set);
// K or V by the objective, else as `stated`, else by the file name; and the composition.
void name_side(RotationSet& set, const std::filesystem::path& path, std::optional<Side> stated);

RotationSet read_pt_rotations(const std::filesystem::path& path);
RotationSet read_safetensors_rotations(const std::filesystem::path& path);

}  // namespace oscar::rotation_parts
