// A part of tokenizer.json is an object whose "type" names its kind; a table says what reads which.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "formats/error.h"

namespace oscar {

template <typename Part>
struct PartKind {
  std::string_view type;
  std::unique_ptr<const Part> (*read)(const nlohmann::json& part);
};

// A number from 0 to limit - 1: conversions take fractions and what no integer holds without a word.
inline int64_t whole_number(const nlohmann::json& value, std::string_view what, int64_t limit) {
  const int64_t number = value.is_number_integer() ? value.get<int64_t>() : -1;
  if (number < 0 || number >= limit)
    throw failure("{} is {}: expected 0 to {}", what, value.dump(), limit - 1);
  return number;
}

// A kind that is not in the table is std::invalid_argument, with the kinds that are.
template <typename Part>
std::unique_ptr<const Part> read_part(const nlohmann::json& part, std::span<const PartKind<Part>> kinds,
                                      std::string_view what) {
  const auto type = part.at("type").get<std::string>();
  std::vector<std::string_view> known;
  for (const auto& kind : kinds) {
    if (kind.type == type) return kind.read(part);
    known.push_back(kind.type);
  }
  throw invalid("{} '{}' is not supported; known: {}", what, type, fmt::join(known, ", "));
}

}  // namespace oscar
