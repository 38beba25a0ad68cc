// Second moments that a rotation can be fitted to, from the sums of a layer.
#pragma once
#include <span>
#include <string_view>

#include "libcalib/moments.h"

namespace oscar {

struct TargetInfo {
  std::string_view name;
  Side side;
  std::string_view meaning;
  // (D, D) per KV head, normalised; std::invalid_argument when the sums it needs were not kept (raw dump, no scores).
  Matrix (*of_head)(const LayerSums& sums, int head);
};
std::span<const TargetInfo> target_table();
const TargetInfo& find_target(std::string_view name);  // std::invalid_argument "unknown target 'x'; known: …"

}  // namespace oscar
