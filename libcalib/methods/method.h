// A method is a table row: which target for K and V, which composition. Rows with their own mathematics get a file.
#pragma once
#include <span>
#include <string_view>

namespace oscar {

struct MethodInfo {
  std::string_view name, target_k, target_v, composition, summary;
};
std::span<const MethodInfo> method_table();
const MethodInfo& find_method(std::string_view name);  // std::invalid_argument "unknown method 'x'; known: …"

}  // namespace oscar
