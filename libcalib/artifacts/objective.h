// What the `objective` of a rotation file says: "<target>_<composition>", then "_perhead" for one rotation
// per KV head.
#pragma once
#include <optional>
#include <string>

#include "libcalib/types.h"

namespace oscar {

struct Objective {
  std::optional<Side> side;  // by the target; none for "hadamard", "uresidual", "cov_eig_hadamard_perhead", …
  std::string composition;  // "" when it names none of ours
};
Objective parse_objective(std::string_view text);

}  // namespace oscar
