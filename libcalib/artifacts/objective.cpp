#include "libcalib/artifacts/objective.h"

#include "libcalib/composition.h"
#include "libcalib/targets.h"

namespace oscar {

Objective parse_objective(std::string_view text) {
  Objective objective;
  constexpr std::string_view per_head = "_perhead";
  if (text.ends_with(per_head)) text.remove_suffix(per_head.size());
  // By target first: "r_h_pbr" ends in the names of two other compositions.
  for (const auto& target : target_table()) {
    if (!text.starts_with(target.name)) continue;
    const std::string_view rest = text.substr(target.name.size());
    if (rest.empty()) objective.side = target.side;
    if (!rest.starts_with('_')) continue;
    objective.side = target.side;
    for (const auto& composition : composition_table()) {
      if (rest.substr(1) == composition.name) objective.composition = composition.name;
    }
  }
  return objective;
}

}  // namespace oscar
