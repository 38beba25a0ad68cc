#include "libcalib/verify_rows.h"

#include "formats/error.h"
#include "libcalib/hadamard.h"

namespace oscar {

RotationSet hadamard_rotations(const std::vector<LayerShape>& shapes, Side side) {
  RotationSet set{.side = side, .objective = "hadamard", .composition = "", .per_head = false, .layers = {}};
  for (const auto& shape : shapes) set.layers[shape.layer].rotation = {hadamard(shape.dim(side))};
  return set;
}

SideSetup RowList::side(const RotationSet* rotation, double clip) const {
  // The engine's kernel without clipping takes 1 group or a multiple of 4; a ratio of 1 clips nothing.
  const bool needs_ratio = clip <= 0 && groups_ != 1 && groups_ % 4 != 0;
  return {.codec = codec_,
          .options = {.groups = groups_, .clip = needs_ratio ? 1.0 : clip},
          .clip_by_layer = {},
          .rotation = rotation};
}

void RowList::add_row(std::string name, const RotationSet* k, const RotationSet* v, double clip_k,
                      double clip_v) {
  for (const auto& row : rows_) {
    if (row.name == name)
      throw invalid("two rows are called '{}': give rotations names of their own, NAME=DIR", name);
  }
  rows_.push_back({.name = std::move(name), .k = side(k, clip_k), .v = side(v, clip_v)});
}

void RowList::add_baselines(const std::vector<LayerShape>& shapes, double clip_k, double clip_v) {
  const auto& [k, v] =
      rotations_.emplace_back(hadamard_rotations(shapes, Side::K), hadamard_rotations(shapes, Side::V));
  add_row("naive", nullptr, nullptr, 0, 0);
  add_row("clip", nullptr, nullptr, clip_k, clip_v);
  add_row("hadamard", &k, &v, 0, 0);
  add_row("hadamard+clip", &k, &v, clip_k, clip_v);
}

void RowList::add(std::string name, RotationPair rotations, double clip_k, double clip_v,
                  std::map<int, double> clip_by_layer_k, std::map<int, double> clip_by_layer_v) {
  const auto& [k, v] = rotations_.emplace_back(std::move(rotations));
  add_row(std::move(name), &k, &v, clip_k, clip_v);
  rows_.back().k.clip_by_layer = std::move(clip_by_layer_k);
  rows_.back().v.clip_by_layer = std::move(clip_by_layer_v);
}

}  // namespace oscar
