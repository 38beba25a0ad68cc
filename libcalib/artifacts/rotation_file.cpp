#include "libcalib/artifacts/rotation_file.h"

#include <charconv>
#include <functional>

#include "formats/error.h"
#include "formats/pt.h"
#include "formats/safetensors.h"
#include "libcalib/artifacts/objective.h"
#include "libcalib/artifacts/provenance_fields.h"

namespace oscar {
namespace {

int layer_id(std::string_view text, const std::string& where) {
  int id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0) {
    throw failure("{}: '{}' is not a layer id", where, text);
  }
  return id;
}

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

Tensor matrices_tensor(const std::vector<Matrix>& matrices, bool stacked) {
  const int64_t d = matrices.at(0).rows(), heads = static_cast<int64_t>(matrices.size());
  std::vector<float> values;
  for (const Matrix& r : matrices) {
    for (Eigen::Index i = 0; i < r.size(); ++i) values.push_back(static_cast<float>(r.data()[i]));
  }
  return make_tensor(stacked ? Shape{heads, d, d} : Shape{d, d}, std::move(values));
}
Tensor vectors_tensor(const std::vector<Vector>& vectors, bool stacked) {
  const int64_t d = vectors.at(0).size(), heads = static_cast<int64_t>(vectors.size());
  std::vector<float> values;
  for (const Vector& v : vectors) {
    for (Eigen::Index i = 0; i < v.size(); ++i) values.push_back(static_cast<float>(v[i]));
  }
  return make_tensor(stacked ? Shape{heads, d} : Shape{d}, std::move(values));
}

// The tensors of a layer by their names in the file. A map of keys that is not orthogonal is read through
// q_rotation, its inverse transpose; one of values is undone by o_rotation, its inverse.
std::vector<std::pair<std::string, Tensor>> layer_tensors(const RotationSet& set,
                                                          const LayerRotation& layer) {
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

// The optional parts of a v3 layer, looked up by name.
void add_optional(LayerRotation& layer, const std::function<const Tensor*(const char*)>& find,
                  const std::string& where) {
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

// 1: a rotation a layer. 2: one per KV head. 3: with means or inverses, on every layer.
int version_of(const RotationSet& set) {
  const LayerRotation& first = set.layers.begin()->second;
  if (!first.means.empty() || !first.inverse.empty()) return 3;
  return set.per_head ? 2 : 1;
}
std::string grouping_of(const RotationSet& set) {
  if (version_of(set) == 3) return set.per_head ? "head" : "layer";
  return set.per_head ? "per_kv_head" : "layer";
}

// Not an initialiser list: GCC 12 then warns of an uninitialised variant, wrongly.
template <typename T>
PtValue pt(T content) {
  PtValue value;
  value.value = std::move(content);
  return value;
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
  const auto side = objective.side ? objective.side : stated ? stated : by_name();
  if (!side) {
    throw invalid(
        "{}: neither the objective '{}' nor the file name says whether these are rotations of K or of V; "
        "name the "
        "file k_… or v_…",
        path.string(), set.objective);
  }
  set.side = *side;
}

RotationSet read_pt_rotations(const std::filesystem::path& path) {
  const std::string where = path.string();
  const PtValue root = read_pt(path);
  const PtDict& file = root.dict(where);
  const PtValue* layers = file.find("layers");
  if (!layers) throw failure("{}: expected a rotation file with the key 'layers'", where);
  RotationSet set;
  if (const PtValue* objective = file.find("objective"))
    set.objective = objective->text(where + ": objective");
  bool matrices = false, stacks = false;
  for (const auto& [key, value] : layers->dict(where + ": layers").items) {
    const auto* text = std::get_if<std::string>(&key.value);
    const int id = text
                       ? layer_id(*text, where + ": layers")
                       : layer_id(std::to_string(key.integer(where + ": key of layers")), where + ": layers");
    const std::string at = fmt::format("{}: layer {}", where, id);
    const PtDict& entry = value.dict(at);
    const PtValue* rotation = entry.find("rotation");
    if (!rotation) throw failure("{}: 'rotation' is missing", at);
    const PtValue* spectrum = entry.find("eigenvalues");
    const Tensor& tensor = rotation->tensor(at + ": rotation");
    (tensor.shape.size() == 3 ? stacks : matrices) = true;
    LayerRotation layer = layer_of(tensor, spectrum ? &spectrum->tensor(at + ": eigenvalues") : nullptr, at);
    add_optional(
        layer,
        [&](const char* name) {
          const PtValue* found = entry.find(name);
          return found ? &found->tensor(at + ": " + name) : nullptr;
        },
        at);
    if (!set.layers.emplace(id, std::move(layer)).second) throw failure("{}: the layer is there twice", at);
  }
  if (matrices && stacks)
    throw failure("{}: some layers have one rotation and others one per KV head", where);
  set.per_head = stacks;
  name_side(set, path, std::nullopt);
  return set;
}

RotationSet read_safetensors_rotations(const std::filesystem::path& path) {
  const std::string where = path.string();
  const SafeTensors file = read_safetensors(path);
  const auto text = [&](const char* key) {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  RotationSet set;
  set.objective = text("objective");
  bool matrices = false, stacks = false;
  constexpr std::string_view prefix = "layers.", suffix = ".rotation";
  for (const auto& [name, tensor] : file.tensors) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    const auto number =
        std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    const int id = layer_id(number, where + ": " + name);
    const auto spectrum = file.tensors.find(fmt::format("layers.{}.eigenvalues", number));
    (tensor.shape.size() == 3 ? stacks : matrices) = true;
    const std::string at = fmt::format("{}: layer {}", where, id);
    LayerRotation layer = layer_of(tensor, spectrum == file.tensors.end() ? nullptr : &spectrum->second, at);
    add_optional(
        layer,
        [&](const char* field) {
          const auto found = file.tensors.find(fmt::format("layers.{}.{}", number, field));
          return found == file.tensors.end() ? nullptr : &found->second;
        },
        at);
    set.layers.emplace(id, std::move(layer));
  }
  if (set.layers.empty())
    throw failure("{}: expected a rotation file with tensors 'layers.<id>.rotation'", where);
  if (matrices && stacks)
    throw failure("{}: some layers have one rotation and others one per KV head", where);
  set.per_head = stacks;
  const std::string side = text("side");
  name_side(set, path,
            side == "k"   ? std::optional(Side::K)
            : side == "v" ? std::optional(Side::V)
                          : std::nullopt);
  return set;
}

}  // namespace

RotationSet read_rotations(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  RotationSet set;
  if (extension == ".pt") {
    set = read_pt_rotations(path);
  } else if (extension == ".safetensors") {
    set = read_safetensors_rotations(path);
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

void write_rotations_pt(const std::filesystem::path& path, const RotationSet& set) {
  PtDict layers;
  for (const auto& [id, layer] : set.layers) {
    PtDict entry;
    entry.set("layer_id", pt(int64_t{id}));
    for (auto& [name, tensor] : layer_tensors(set, layer)) entry.set(name, pt(std::move(tensor)));
    layers.set(int64_t{id}, pt(std::move(entry)));
  }
  PtDict file;
  file.set("format_version", pt(int64_t{version_of(set)}));
  file.set("objective", pt(set.objective));
  file.set("source_grouping", pt(grouping_of(set)));
  file.set("layers", pt(std::move(layers)));
  write_pt(path, pt(std::move(file)), path.stem().string());
}

void write_rotations_safetensors(const std::filesystem::path& path, const RotationSet& set,
                                 const Provenance& provenance) {
  SafeTensors file;
  for (const auto& [id, layer] : set.layers) {
    for (auto& [name, tensor] : layer_tensors(set, layer))
      file.tensors[fmt::format("layers.{}.{}", id, name)] = std::move(tensor);
  }
  file.metadata["format_version"] = std::to_string(version_of(set));
  file.metadata["objective"] = set.objective;
  file.metadata["source_grouping"] = grouping_of(set);
  file.metadata["side"] = side_name(set.side);
  for (const auto& field : kProvenanceTexts) {
    if (const std::string& value = provenance.*field.value; !value.empty() && !field.place)
      file.metadata[field.name] = value;
  }
  file.metadata["tokens"] = std::to_string(provenance.tokens);
  file.metadata["sequence_lengths"] = fmt::format("{}", fmt::join(provenance.sequence_lengths, ","));
  write_safetensors(path, file);
}

}  // namespace oscar
