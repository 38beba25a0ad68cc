#include "libdump/model_config.h"

#include <fmt/format.h>

namespace oscar {

std::string RopeConfig::describe() const { return fmt::format("halves dim={} base={} scaling={}", dim, base, scaling); }

}  // namespace oscar
