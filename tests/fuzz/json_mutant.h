// Mutations that leave JSON valid: a value takes the place of another, is moved, repeated, dropped or turned into
// an odd one. A quarter are the engine's own.
#pragma once
#include <nlohmann/json.hpp>
#include <random>

#include "tests/fuzz/target.h"

namespace oscar::fuzz {

inline size_t json_mutant(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  using Json = nlohmann::json;
  std::mt19937_64 random(seed);
  Json root = Json::parse(data, data + size, nullptr, false);
  if (random() % 4 == 0 || !root.is_structured()) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<Json*> values;
  const std::function<void(Json&)> collect = [&](Json& value) {
    values.push_back(&value);
    if (!value.is_structured() || values.size() > 1000) return;
    for (auto& part : value) collect(part);
  };
  collect(root);
  const auto any = [&]() -> Json& { return *values[random() % values.size()]; };
  static const Json odd[] = {nullptr,
                             true,
                             false,
                             0,
                             -1,
                             2147483647,
                             -9223372036854775807 - 1,
                             18446744073709551615u,
                             1e300,
                             0.5,
                             "",
                             " ",
                             "\u2581",
                             Json::array(),
                             Json::object()};
  Json& chosen = any();
  switch (random() % 5) {
    case 0:
      chosen = odd[random() % std::size(odd)];
      break;
    case 1:
      chosen = Json(any());
      break;
    case 2:
      if (chosen.is_array()) chosen.push_back(Json(any()));
      if (chosen.is_object() && !chosen.empty())
        chosen.erase(std::next(chosen.begin(), random() % chosen.size()));
      break;
    case 3:
      if (chosen.is_number_integer())
        chosen = static_cast<int64_t>(chosen.get<uint64_t>() + random() % 9 - 4);
      if (chosen.is_boolean()) chosen = !chosen.get<bool>();
      break;
    case 4:
      if (auto* text = chosen.get_ptr<std::string*>()) {
        const auto length = text->size();
        text->resize(length + 16);
        text->resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text->data()), length, text->size()));
      }
      break;
  }
  const auto text = root.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}

}  // namespace oscar::fuzz
