// Internal to formats/pickle_*.cpp: what the stack machine works on. Containers are shared objects until the
// end, because a pickle fills them after it has put them into its memo; they become values once, when the
// machine stops.
#pragma once
#include "formats/pickle.h"

namespace oscar::pickle {

struct Object;
struct Mark {};
using Item = std::variant<PtNone, bool, int64_t, double, Object*, Mark>;

struct Global {
  std::string name;  // "torch._utils _rebuild_tensor_v2"
};
struct Storage {
  std::string key;
  const DTypeInfo* type;  // nullptr: untyped, counted in bytes
  int64_t count;
};
struct List {
  std::vector<Item> items;
};
struct Tuple {
  std::vector<Item> items;
};
struct Dict {
  std::vector<Item> items;  // key, value, key, value, …
};

struct Object {
  size_t at;  // offset of the opcode that made it
  std::variant<std::string, List, Tuple, Dict, Global, Storage, Tensor> content;
};

inline std::string_view kind_of(const Item& item) {
  constexpr std::string_view kinds[] = {"None", "a bool", "an int", "a float"};
  constexpr std::string_view objects[] = {"a str",    "a list",    "a tuple", "a dict",
                                          "a global", "a storage", "a tensor"};
  if (std::holds_alternative<Mark>(item)) return "a mark";
  if (const auto* object = std::get_if<Object*>(&item)) return objects[(*object)->content.index()];
  return kinds[item.index()];
}

// Shared objects are copied, so depth and memory are limited here too. `in` names the file in messages.
PtValue to_value(const Item& item, const ByteReader& in, Budget& budget);

}  // namespace oscar::pickle
