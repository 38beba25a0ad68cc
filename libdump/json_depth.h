// A bound on nested JSON, for what reads a part by calling itself, and writes it into a message so.
#pragma once
#include <nlohmann/json.hpp>

#include "formats/error.h"

namespace oscar {

// The callback of nlohmann::json::parse: std::runtime_error for more than 100 levels.
inline bool not_too_deep(int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
  static constexpr int kDeepest = 100;
  if (depth > kDeepest) throw failure("JSON nested deeper than {}", kDeepest);
  return true;
}

}  // namespace oscar
