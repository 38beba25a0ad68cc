// Lookup by name in a table of plain structs, and the one wording of the error.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "formats/error.h"

namespace oscar {

template <typename Row>
std::string known_names(std::span<const Row> table) {
  std::string names;
  for (const Row& row : table) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

// The row of that name; std::invalid_argument "unknown method 'x'; known: …".
template <typename Row>
const Row& find_by_name(std::span<const Row> table, std::string_view name, std::string_view kind) {
  for (const Row& row : table) {
    if (row.name == name) return row;
  }
  throw invalid("unknown {} '{}'; known: {}", kind, name, known_names(table));
}

}  // namespace oscar
