// What a rotation file holds: one map per layer, or one per KV head, for keys or for values.
#pragma once
#include <map>

#include "libcalib/statistics.h"

namespace oscar {

struct LayerRotation {
  std::vector<Matrix> rotation;  // 1 (shared by the layer's heads) or Hkv matrices (D, D), row vectors: k R
  std::vector<Vector> eigenvalues;  // as many, ascending; empty where there are none (hadamard)
  std::vector<Matrix> inverse{};    // as many, where the map is not orthogonal (v3); else empty
  std::vector<Vector> means{};      // 1 or Hkv, taken off a row before it is coded (v3); else empty
  const Matrix& of_head(int head) const {
    return rotation[rotation.size() == 1 ? 0 : static_cast<size_t>(head)];
  }
};

struct RotationSet {
  Side side = Side::K;
  std::string objective;    // "qqt_r_h_pbr", "hadamard", … as stored in the file
  std::string composition;  // "r_h_pbr"; "" where the file does not say
  bool per_head = false;
  int version = 0;          // of the file: 3 even where 1 or 2 would do; 0: what the content needs
  std::map<int, LayerRotation> layers;  // by global layer id
};

// RRᵀ - I, largest absolute entry.
double orthogonality_error(const Matrix& rotation);
// What a rotation file of this project, or of the published scripts, must be: finite, square, one size per
// layer, orthogonal to 1e-4, or the inverse beside it right to 1e-3. Throws std::runtime_error naming file,
// layer, head and value.
void check(const RotationSet& set, const std::string& where);

}  // namespace oscar
