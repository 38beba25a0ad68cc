#include <algorithm>
#include <utility>

#include "formats/pickle_objects.h"

namespace oscar::pickle {

namespace {

bool hashable(const PtValue& key) {
  if (const auto* tuple = std::get_if<PtTuple>(&key.value))
    return std::ranges::all_of(tuple->items, hashable);
  return !std::holds_alternative<PtList>(key.value) && !std::holds_alternative<PtDict>(key.value) &&
         !std::holds_alternative<Tensor>(key.value);
}

class Converter {
 public:
  Converter(const ByteReader& in, Budget& budget) : in_(in), budget_(budget) {}

  PtValue value(const Item& item) {
    if (const auto* object = std::get_if<Object*>(&item)) {
      const auto outer = std::exchange(at_, (*object)->at);
      if (depth_ > kPickleDepth)
        throw fail(fmt::format("containers are nested deeper than {}", kPickleDepth));
      ++depth_;
      auto result = std::visit([&](const auto& content) { return convert(content); }, (*object)->content);
      --depth_;
      at_ = outer;
      return result;
    }
    if (const auto* flag = std::get_if<bool>(&item)) return {*flag};
    if (const auto* integer = std::get_if<int64_t>(&item)) return {*integer};
    if (const auto* number = std::get_if<double>(&item)) return {*number};
    if (std::holds_alternative<Mark>(item)) throw fail("the pickle uses a mark as a value");
    return {PtNone{}};
  }

 private:
  std::runtime_error fail(std::string_view why) const { return in_.fail_at(at_, why); }
  void take(uint64_t bytes) { budget_.take(bytes, in_, "the pickle"); }

  std::vector<PtValue> values(const std::vector<Item>& items) {
    std::vector<PtValue> result;
    take(items.size() * sizeof(PtValue));
    result.reserve(items.size());
    for (const auto& item : items) result.push_back(value(item));
    return result;
  }
  PtValue convert(const std::string& text) {
    budget_.take_text(text.size(), in_, "the pickle");
    return {text};
  }
  PtValue convert(const List& list) { return {PtList{values(list.items)}}; }
  PtValue convert(const Tuple& tuple) { return {PtTuple{values(tuple.items)}}; }
  PtValue convert(const Tensor& tensor) {
    take(tensor.shape.size() * sizeof(int64_t));
    return {tensor};
  }
  PtValue convert(const Global& global) {
    throw fail(fmt::format("'{}' is used as a value", shown(global.name)));
  }
  PtValue convert(const Storage& storage) {
    throw fail(fmt::format("storage '{}' is used as a value: save a tensor", shown(storage.key)));
  }
  PtValue convert(const Dict& dict) {
    PtDict result;
    const size_t n = dict.items.size() / 2;
    take(n * sizeof(result.items[0]));
    result.items.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      auto key = value(dict.items[2 * i]);
      if (!hashable(key)) throw fail(fmt::format("a {} cannot be the key of a dict", key.kind()));
      result.items.emplace_back(std::move(key), value(dict.items[2 * i + 1]));
    }
    check_keys(result);
    return {std::move(result)};
  }
  // Texts and integers, which are what find() looks for, are there once.
  void check_keys(const PtDict& dict) {
    const uint64_t room = dict.items.size() * (sizeof(std::string_view) + sizeof(int64_t));
    take(room);
    std::vector<std::string_view> texts;
    std::vector<int64_t> integers;
    texts.reserve(dict.items.size());
    integers.reserve(dict.items.size());
    for (const auto& [key, item] : dict.items) {
      if (const auto* text = std::get_if<std::string>(&key.value)) texts.push_back(*text);
      if (const auto* integer = std::get_if<int64_t>(&key.value)) integers.push_back(*integer);
    }
    std::ranges::sort(texts);
    std::ranges::sort(integers);
    if (const auto twice = std::ranges::adjacent_find(texts); twice != texts.end())
      throw fail(fmt::format("key '{}' appears twice in a dict", shown(*twice)));
    if (const auto twice = std::ranges::adjacent_find(integers); twice != integers.end())
      throw fail(fmt::format("key {} appears twice in a dict", *twice));
    budget_.give_back(room);
  }

  const ByteReader& in_;
  Budget& budget_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

PtValue to_value(const Item& item, const ByteReader& in, Budget& budget) {
  return Converter(in, budget).value(item);
}

}  // namespace oscar::pickle
