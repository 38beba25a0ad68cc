#include "libcalib/artifacts/rotation_versions.h"

#include <algorithm>

#include "formats/error.h"

namespace oscar {
namespace {

constexpr std::string_view kPerHead = "_perhead";

void refuse_v3(const RotationSet& set, int version) {
  for (const auto& [id, layer] : set.layers) {
    if (!layer.means.empty())
      throw invalid(
          "'{}': layer {}: rows lose a mean before they are rotated, which version {} cannot say: version 3 "
          "does",
          set.objective, id, version);
    if (!layer.inverse.empty())
      throw invalid(
          "'{}': layer {}: the map is not orthogonal and needs its inverse, which version {} cannot say: "
          "version 3 does",
          set.objective, id, version);
  }
}

void share(RotationSet& set) {
  for (auto& [id, layer] : set.layers) {
    for (size_t h = 1; h < layer.rotation.size(); ++h) {
      if (layer.rotation[h] != layer.rotation[0])
        throw invalid(
            "'{}': layer {}: heads 0 and {} have different rotations, version 1 has one a layer: keep "
            "version 2, or fit with "
            "--granularity layer",
            set.objective, id, h);
    }
    layer.rotation.resize(1);
    if (!layer.eigenvalues.empty()) layer.eigenvalues.resize(1);
  }
  set.per_head = false;
  if (set.objective.ends_with(kPerHead)) set.objective.resize(set.objective.size() - kPerHead.size());
}

void repeat(RotationSet& set, int kv_heads) {
  if (kv_heads <= 0)
    throw invalid("'{}' has one rotation a layer: --kv-heads says how many version 2 repeats it",
                  set.objective);
  for (auto& entry : set.layers) {
    auto& layer = entry.second;
    layer.rotation.resize(static_cast<size_t>(kv_heads), layer.rotation[0]);
    if (!layer.eigenvalues.empty())
      layer.eigenvalues.resize(static_cast<size_t>(kv_heads), layer.eigenvalues[0]);
  }
  set.per_head = true;
  if (!set.objective.ends_with(kPerHead)) set.objective += kPerHead;
}

}  // namespace

RotationSet as_version(const RotationSet& set, int version, int kv_heads) {
  RotationSet result = set;
  result.version = version;
  if (version == 3) return result;
  refuse_v3(set, version);
  if (version == 1 && set.per_head) share(result);
  if (version == 2 && !set.per_head) repeat(result, kv_heads);
  return result;
}

}  // namespace oscar
