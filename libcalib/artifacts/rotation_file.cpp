#include "libcalib/artifacts/rotation_file.h"

#include <charconv>

#include "formats/error.h"
#include "formats/pt.h"
#include "formats/safetensors.h"
#include "libcalib/artifacts/objective.h"
#include "libcalib/artifacts/provenance_fields.h"

namespace oscar {
namespace {

constexpr std::string_view kPerLayer = "layer", kPerHead = "per_kv_head";

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

Tensor rotation_tensor(const RotationSet& set, const LayerRotation& layer) {
  const int64_t d = layer.rotation.at(0).rows();
  std::vector<float> values;
  for (const Matrix& r : layer.rotation) {
    for (Eigen::Index i = 0; i < r.size(); ++i) values.push_back(static_cast<float>(r.data()[i]));
  }
  const int64_t heads = static_cast<int64_t>(layer.rotation.size());
  return make_tensor(set.per_head ? Shape{heads, d, d} : Shape{d, d}, std::move(values));
}
Tensor eigenvalue_tensor(const RotationSet& set, const LayerRotation& layer) {
  const int64_t d = layer.eigenvalues.at(0).size();
  std::vector<float> values;
  for (const Vector& v : layer.eigenvalues) {
    for (Eigen::Index i = 0; i < v.size(); ++i) values.push_back(static_cast<float>(v[i]));
  }
  const int64_t heads = static_cast<int64_t>(layer.eigenvalues.size());
  return make_tensor(set.per_head ? Shape{heads, d} : Shape{d}, std::move(values));
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
    for (const char* field : {"q_rotation", "k_mean", "o_rotation"}) {
      if (!entry.find(field)) continue;
      throw invalid(
          "{}: '{}' makes this a format_version 3 file; only plain rotations (versions 1 and 2) are read", at,
          field);
    }
    const PtValue* rotation = entry.find("rotation");
    if (!rotation) throw failure("{}: 'rotation' is missing", at);
    const PtValue* spectrum = entry.find("eigenvalues");
    const Tensor& tensor = rotation->tensor(at + ": rotation");
    (tensor.shape.size() == 3 ? stacks : matrices) = true;
    if (!set.layers
             .emplace(id, layer_of(tensor, spectrum ? &spectrum->tensor(at + ": eigenvalues") : nullptr, at))
             .second) {
      throw failure("{}: the layer is there twice", at);
    }
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
    set.layers.emplace(id, layer_of(tensor, spectrum == file.tensors.end() ? nullptr : &spectrum->second,
                                    fmt::format("{}: layer {}", where, id)));
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
    entry.set("rotation", pt(rotation_tensor(set, layer)));
    if (!layer.eigenvalues.empty()) entry.set("eigenvalues", pt(eigenvalue_tensor(set, layer)));
    layers.set(int64_t{id}, pt(std::move(entry)));
  }
  PtDict file;
  file.set("format_version", pt(int64_t{set.per_head ? 2 : 1}));
  file.set("objective", pt(set.objective));
  file.set("source_grouping", pt(std::string(set.per_head ? kPerHead : kPerLayer)));
  file.set("layers", pt(std::move(layers)));
  write_pt(path, pt(std::move(file)), path.stem().string());
}

void write_rotations_safetensors(const std::filesystem::path& path, const RotationSet& set,
                                 const Provenance& provenance) {
  SafeTensors file;
  for (const auto& [id, layer] : set.layers) {
    file.tensors[fmt::format("layers.{}.rotation", id)] = rotation_tensor(set, layer);
    if (layer.eigenvalues.empty()) continue;
    file.tensors[fmt::format("layers.{}.eigenvalues", id)] = eigenvalue_tensor(set, layer);
  }
  file.metadata["format_version"] = set.per_head ? "2" : "1";
  file.metadata["objective"] = set.objective;
  file.metadata["source_grouping"] = set.per_head ? kPerHead : kPerLayer;
  file.metadata["side"] = side_name(set.side);
  for (const auto& field : kProvenanceTexts) {
    if (const std::string& value = provenance.*field.value; !value.empty()) file.metadata[field.name] = value;
  }
  file.metadata["tokens"] = std::to_string(provenance.tokens);
  file.metadata["sequence_lengths"] = fmt::format("{}", fmt::join(provenance.sequence_lengths, ","));
  write_safetensors(path, file);
}

}  // namespace oscar
