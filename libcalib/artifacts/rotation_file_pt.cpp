#include <algorithm>

#include "formats/error.h"
#include "libcalib/artifacts/pt_fields.h"
#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/artifacts/rotation_file_parts.h"

namespace oscar {

using pt_fields::pt;

RotationSet rotation_parts::read_pt_rotations(const std::filesystem::path& path) {
  const std::string where = path.string();
  const PtValue root = read_pt(path);
  const PtDict& file = root.dict(where);
  const PtValue* layers = file.find("layers");
  if (!layers) throw failure("{}: expected a rotation file with the key 'layers'", where);
  RotationSet set;
  if (const PtValue* objective = file.find("objective"))
    set.objective = objective->text(where + ": objective");
  for (const auto& [key, value] : layers->dict(where + ": layers").items) {
    const int id = pt_fields::layer_id(key, where + ": layers");
    const pt_fields::Fields entry(value, fmt::format("{}: layer {}", where, id));
    add_layer(
        set, id,
        [&](const char* name) {
          const PtValue* found = entry.find(name);
          return found ? &found->tensor(entry.where(name)) : nullptr;
        },
        entry.where());
  }
  name_side(set, path, std::nullopt);
  return set;
}

namespace {

// What version 3 says of the maps: {"key" or "value": objective, "centered", "orthogonal"}.
PtDict transform_block(const RotationSet& set) {
  const LayerRotation& first = set.layers.begin()->second;
  PtDict block;
  block.set(set.side == Side::K ? "key" : "value", pt(set.objective));
  block.set("centered", pt(!first.means.empty()));
  block.set("orthogonal", pt(first.inverse.empty()));
  return block;
}

// What version 3 says of the run, as far as it is known.
PtDict calibration_block(const RotationSet& set, const Provenance& provenance, int q_heads) {
  size_t heads = 1;
  for (const auto& [id, layer] : set.layers)
    heads = std::max({heads, layer.rotation.size(), layer.means.size()});
  PtDict block;
  block.set("model_path", pt(provenance.model_name));
  block.set("prompt_sha256", pt(provenance.text_digest));
  block.set("tokens", pt(provenance.tokens));
  if (heads > 1) block.set("global_kv_heads", pt(static_cast<int64_t>(heads)));
  if (q_heads > 0) block.set("global_q_heads", pt(int64_t{q_heads}));
  block.set("fitter", pt("oscar-calib " OSCAR_VERSION));
  return block;
}

}  // namespace

void write_rotations_pt(const std::filesystem::path& path, const RotationSet& set,
                        const Provenance& provenance, int q_heads) {
  PtDict layers;
  for (const auto& [id, layer] : set.layers) {
    PtDict entry;
    entry.set("layer_id", pt(int64_t{id}));
    for (auto& [name, tensor] : rotation_parts::layer_tensors(set, layer))
      entry.set(name, pt(std::move(tensor)));
    layers.set(int64_t{id}, pt(std::move(entry)));
  }
  const int version = rotation_parts::version_of(set);
  PtDict file;
  file.set("format_version", pt(int64_t{version}));
  file.set("objective", pt(set.objective));
  file.set("source_grouping", pt(rotation_parts::grouping_of(set)));
  if (version == 3) {
    file.set("transform", pt(transform_block(set)));
    if (provenance.tokens > 0) file.set("calibration", pt(calibration_block(set, provenance, q_heads)));
  }
  file.set("layers", pt(std::move(layers)));
  write_pt(path, pt(std::move(file)), path.stem().string());
}

}  // namespace oscar
