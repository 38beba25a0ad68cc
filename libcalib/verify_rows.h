// The rows of a verification: the baselines that every report shows, then the rotations that are asked for.
#pragma once
#include <deque>

#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/verify.h"

namespace oscar {

// H alone for every layer: no calibration.
RotationSet hadamard_rotations(const std::vector<LayerShape>& shapes, Side side);

// Rows point into the sets that this owns; it can be moved, not copied.
class RowList {
 public:
  // `clip` of a row is meant for the codec at hand: "off" becomes a ratio of 1 where the codec cannot go
  // without.
  RowList(const CodecInfo& codec, int groups) : codec_(&codec), groups_(groups) {}
  RowList(RowList&&) = default;

  // "naive", "clip", "hadamard", "hadamard+clip"
  void add_baselines(const std::vector<LayerShape>& shapes, double clip_k, double clip_v);
  // std::invalid_argument when the name is taken.
  void add(std::string name, RotationPair rotations, double clip_k, double clip_v,
           std::map<int, double> clip_by_layer_k = {}, std::map<int, double> clip_by_layer_v = {});
  const std::vector<VerifyRow>& rows() const { return rows_; }

 private:
  SideSetup side(const RotationSet* rotation, double clip) const;
  void add_row(std::string name, const RotationSet* k, const RotationSet* v, double clip_k, double clip_v);

  const CodecInfo* codec_;
  int groups_;
  std::deque<RotationPair> rotations_;  // addresses stay
  std::vector<VerifyRow> rows_;
};

}  // namespace oscar
