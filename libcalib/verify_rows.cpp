#include "libcalib/verify_rows.h"

#include "libcalib/hadamard.h"

namespace oscar {

RotationSet hadamard_rotations(const std::vector<LayerShape>& shapes, Side side) {
  RotationSet set{.side = side, .objective = "hadamard", .composition = "", .per_head = false, .layers = {}};
  for (const auto& shape : shapes) set.layers[shape.layer].rotation = {hadamard(shape.dim(side))};
  return set;
}

CacheCodes ScalarRows::row(std::string name, const RotationSet* k, const RotationSet* v, double clip_k,
                           double clip_v, const std::map<int, double>& clip_by_layer_k,
                           const std::map<int, double>& clip_by_layer_v) const {
  const auto options = [&](double clip) {
    // The engine's kernel without clipping takes 1 group or a multiple of 4; a ratio of 1 clips nothing.
    const bool needs_ratio = clip <= 0 && groups != 1 && groups % 4 != 0;
    return CodecOptions{.groups = groups, .clip = needs_ratio ? 1.0 : clip};
  };
  return {std::move(name), scalar_codes(Side::K, shapes, k, *codec, options(clip_k), clip_by_layer_k),
          scalar_codes(Side::V, shapes, v, *codec, options(clip_v), clip_by_layer_v)};
}

std::vector<CacheCodes> ScalarRows::baselines(double clip_k, double clip_v) const {
  const RotationSet k = hadamard_rotations(shapes, Side::K), v = hadamard_rotations(shapes, Side::V);
  return {row("naive", nullptr, nullptr, 0, 0), row("clip", nullptr, nullptr, clip_k, clip_v),
          row("hadamard", &k, &v, 0, 0), row("hadamard+clip", &k, &v, clip_k, clip_v)};
}

}  // namespace oscar
