#include "libcalib/artifacts/rotation_file.h"

#include "formats/error.h"
#include "libcalib/artifacts/objective.h"
#include "libcalib/artifacts/pt_fields.h"
#include "libcalib/artifacts/rotation_file_parts.h"

namespace oscar {
namespace rotation_parts {
namespace {

// [d, d] is one matrix for the layer, [H, d, d] one per KV head; eigenvalues [d] or [H, d], or none.
LayerRotation layer_of(const Tensor& rotation, const Tensor* eigenvalues, const std::string& where) {
  const Shape& s = rotation.shape;
  const bool square = (s.size() == 2 || s.size() == 3) && s.back() == s[s.size() - 2] && s.back() > 0;
  if (!square) throw failure("{}: rotation: expected [d, d] or [H, d, d], found {}", where, to_string(s));
  const int64_t d = s.back(), heads = s.size() == 3 ? s[0] : 1;
  LayerRotation layer;
  const auto values = rotation.doubles();
  for (int64_t h = 0; h < heads; ++h)
    layer.rotation.push_back(ConstMatrixMap(values.data() + h * d * d, d, d));
  if (!eigenvalues) return layer;
  const Shape expected = s.size() == 3 ? Shape{heads, d} : Shape{d};
  if (eigenvalues->shape != expected) {
    throw failure("{}: eigenvalues: expected {}, found {}", where, to_string(expected),
                  to_string(eigenvalues->shape));
  }
  const auto spectrum = eigenvalues->doubles();
  for (int64_t h = 0; h < heads; ++h) layer.eigenvalues.push_back(ConstVectorMap(spectrum.data() + h * d, d));
  return layer;
}

// The optional parts of a v3 layer, looked up by name.
void add_optional(LayerRotation& layer, const FindTensor& find, const std::string& where) {
  const size_t d = static_cast<size_t>(layer.rotation[0].rows()), heads = layer.rotation.size();
  const auto count_of = [&](const Tensor& tensor, size_t each, const char* name) {
    size_t total = 1;
    for (const auto extent : tensor.shape) total *= static_cast<size_t>(extent);
    if (total == 0 || total % each != 0 || tensor.shape.back() != static_cast<int64_t>(d))
      throw failure("{}: {}: unexpected shape {}", where, name, to_string(tensor.shape));
    return total / each;
  };
  for (const char* name : {"q_rotation", "o_rotation"}) {
    const Tensor* tensor = find(name);
    if (!tensor) continue;
    if (count_of(*tensor, d * d, name) != heads)
      throw failure("{}: {}: expected as many as rotations, {}, found {}", where, name, heads,
                    to_string(tensor->shape));
    const auto values = tensor->doubles();
    for (size_t h = 0; h < heads; ++h) {
      const Matrix map =
          ConstMatrixMap(values.data() + h * d * d, layer.rotation[0].rows(), layer.rotation[0].rows());
      layer.inverse.push_back(name[0] == 'q' ? Matrix(map.transpose()) : map);
    }
  }
  for (const char* name : {"k_mean", "v_mean"}) {
    const Tensor* tensor = find(name);
    if (!tensor) continue;
    const size_t count = count_of(*tensor, d, name);
    const auto values = tensor->doubles();
    for (size_t h = 0; h < count; ++h)
      layer.means.push_back(ConstVectorMap(values.data() + h * d, layer.rotation[0].rows()));
  }
}

// Objectives of others that name a side: "identity-k", "hadamard_v", "oscar2_optr_k", "oscar2_v_pre_wo".
std::optional<Side> published_side(std::string_view objective) {
  if (objective.ends_with("-k") || objective.ends_with("_k")) return Side::K;
  if (objective.ends_with("-v") || objective.ends_with("_v") || objective.starts_with("oscar2_v_"))
    return Side::V;
  return std::nullopt;
}

}  // namespace

void add_layer(RotationSet& set, int id, const FindTensor& find, const std::string& where) {
  const Tensor* rotation = find("rotation");
  if (!rotation) throw failure("{}: 'rotation' is missing", where);
  const bool per_head = rotation->shape.size() == 3;
  if (!set.layers.empty() && per_head != set.per_head)
    throw failure("{}: some layers have one rotation and others one per KV head", where);
  set.per_head = per_head;
  LayerRotation layer = layer_of(*rotation, find("eigenvalues"), where);
  add_optional(layer, find, where);
  if (!set.layers.emplace(id, std::move(layer)).second) throw failure("{}: the layer is there twice", where);
}

std::vector<std::pair<std::string, Tensor>> layer_tensors(const RotationSet& set,
                                                          const LayerRotation& layer) {
  using pt_fields::matrices_tensor, pt_fields::vectors_tensor;
  std::vector<std::pair<std::string, Tensor>> tensors;
  tensors.emplace_back("rotation", matrices_tensor(layer.rotation, set.per_head));
  if (!layer.eigenvalues.empty())
    tensors.emplace_back("eigenvalues", vectors_tensor(layer.eigenvalues, set.per_head));
  if (!layer.inverse.empty()) {
    auto inverse = layer.inverse;
    if (set.side == Side::K) {
      for (Matrix& map : inverse) map = map.transpose().eval();
    }
    tensors.emplace_back(set.side == Side::K ? "q_rotation" : "o_rotation",
                         matrices_tensor(inverse, set.per_head));
  }
  if (!layer.means.empty())
    tensors.emplace_back(set.side == Side::K ? "k_mean" : "v_mean",
                         vectors_tensor(layer.means, layer.means.size() > 1));
  return tensors;
}

int version_of(const RotationSet& set) {
  const LayerRotation& first = set.layers.begin()->second;
  if (set.version == 3 || !first.means.empty() || !first.inverse.empty()) return 3;
  return set.per_head ? 2 : 1;
}
std::string grouping_of(const RotationSet& set) {
  if (version_of(set) == 3) return set.per_head ? "head" : "layer";
  return set.per_head ? "per_kv_head" : "layer";
}

void name_side(RotationSet& set, const std::filesystem::path& path, std::optional<Side> stated) {
  const Objective objective = parse_objective(set.objective);
  set.composition = objective.composition;
  const std::string stem = path.stem().string();
  const auto by_name = [&]() -> std::optional<Side> {
    if (stem.starts_with("k_") || stem == "k") return Side::K;
    if (stem.starts_with("v_") || stem == "v") return Side::V;
    return std::nullopt;
  };
  const auto by_objective = objective.side ? objective.side : published_side(set.objective);
  const auto side = by_objective ? by_objective : stated ? stated : by_name();
  if (!side) {
    throw invalid(
        "{}: neither the objective '{}' nor the file name says whether these are rotations of K or of V; "
        "name the "
        "file k_… or v_…",
        path.string(), set.objective);
  }
  set.side = *side;
}

}  // namespace rotation_parts

RotationSet read_rotations(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  RotationSet set;
  if (extension == ".pt") {
    set = rotation_parts::read_pt_rotations(path);
  } else if (extension == ".safetensors") {
    set = rotation_parts::read_safetensors_rotations(path);
  } else {
    throw invalid("{}: rotation files end in .pt or .safetensors", path.string());
  }
  const auto parts = [](const LayerRotation& layer) {
    return std::pair(layer.means.empty(), layer.inverse.empty());
  };
  for (const auto& [id, layer] : set.layers) {
    if (parts(layer) != parts(set.layers.begin()->second))
      throw failure("{}: layer {}: a mean or an inverse must be on all layers or on none", path.string(), id);
  }
  check(set, path.string());
  return set;
}

std::string rotation_file_stem(const RotationSet& set) {
  return fmt::format("{}_rotation_{}", side_name(set.side), set.per_head ? "perhead" : set.objective);
}

}  // namespace oscar
