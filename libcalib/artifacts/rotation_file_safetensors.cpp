#include "formats/error.h"
#include "formats/safetensors.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/artifacts/pt_fields.h"
#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/artifacts/rotation_file_parts.h"

namespace oscar {

RotationSet rotation_parts::read_safetensors_rotations(const std::filesystem::path& path) {
  const std::string where = path.string();
  const SafeTensors file = read_safetensors(path);
  const auto text = [&](const char* key) {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  RotationSet set;
  set.objective = text("objective");
  constexpr std::string_view prefix = "layers.", suffix = ".rotation";
  for (const auto& [name, tensor] : file.tensors) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    const auto number =
        std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    const int id = pt_fields::layer_id(number, where + ": " + name);
    add_layer(
        set, id,
        [&](const char* field) {
          const auto found = file.tensors.find(fmt::format("layers.{}.{}", number, field));
          return found == file.tensors.end() ? nullptr : &found->second;
        },
        fmt::format("{}: layer {}", where, id));
  }
  if (set.layers.empty())
    throw failure("{}: expected a rotation file with tensors 'layers.<id>.rotation'", where);
  const std::string side = text("side");
  name_side(set, path,
            side == "k"   ? std::optional(Side::K)
            : side == "v" ? std::optional(Side::V)
                          : std::nullopt);
  return set;
}

void write_rotations_safetensors(const std::filesystem::path& path, const RotationSet& set,
                                 const Provenance& provenance) {
  SafeTensors file;
  for (const auto& [id, layer] : set.layers) {
    for (auto& [name, tensor] : rotation_parts::layer_tensors(set, layer))
      file.tensors[fmt::format("layers.{}.{}", id, name)] = std::move(tensor);
  }
  file.metadata["format_version"] = std::to_string(rotation_parts::version_of(set));
  file.metadata["objective"] = set.objective;
  file.metadata["source_grouping"] = rotation_parts::grouping_of(set);
  file.metadata["side"] = std::string(side_name(set.side));  // GCC 12 warns of a char*, wrongly
  for (const auto& field : kProvenanceTexts) {
    if (const std::string& value = provenance.*field.value; !value.empty() && !field.place)
      file.metadata[field.name] = value;
  }
  file.metadata["tokens"] = std::to_string(provenance.tokens);
  file.metadata["sequence_lengths"] = fmt::format("{}", fmt::join(provenance.sequence_lengths, ","));
  write_safetensors(path, file);
}

}  // namespace oscar
