// The rows of a verification that every report shows, and rows of rotation files.
#pragma once
#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/setup.h"

namespace oscar {

// H alone for every layer: no calibration.
RotationSet hadamard_rotations(const std::vector<LayerShape>& shapes, Side side);

// What scalar rows share. A clip of "off" becomes a ratio of 1 where the engine's kernel cannot go without.
struct ScalarRows {
  std::vector<LayerShape> shapes;
  const CodecInfo* codec;
  int groups = 1;

  CacheCodes row(std::string name, const RotationSet* k, const RotationSet* v, double clip_k, double clip_v,
                 const std::map<int, double>& clip_by_layer_k = {},
                 const std::map<int, double>& clip_by_layer_v = {}) const;
  // "naive", "clip", "hadamard", "hadamard+clip"
  std::vector<CacheCodes> baselines(double clip_k, double clip_v) const;
};

}  // namespace oscar
