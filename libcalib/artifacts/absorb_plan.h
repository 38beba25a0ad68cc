// What absorbing V rotations changes in a checkpoint, found and refused before anything is written.
#pragma once
#include <memory>

#include "libcalib/artifacts/checkpoint_geometry.h"
#include "libcalib/rotation.h"

namespace oscar {

inline constexpr const char* kAbsorbedRecord = "oscar_absorbed.json";
inline constexpr const char* kAbsorbedKey = "oscar_v_rotation";  // in the metadata of shards

// One projection whose numbers change, by the names of its tensors; "" for a scale or a bias that is not
// there.
struct AbsorbedProjection {
  std::string weight, scale, bias;
  int64_t first = 0;    // row of the first V head; Q and K are before it in a fused projection
  bool output = false;  // W_o: its columns turn, not its rows
};
struct AbsorbPlan {
  CheckpointGeometry geometry;
  ShardedSafeTensors shards;
  std::map<std::string, std::shared_ptr<const AbsorbedProjection>> changed;  // by tensor
  std::string dtype;                                                         // of the V projections
};
// Throws as absorb_v() does.
AbsorbPlan plan_absorption(const std::filesystem::path& model, const RotationSet& rotations,
                           bool fold_output);

}  // namespace oscar
