#include <algorithm>
#include <utility>

#include "formats/error.h"
#include "formats/gguf.h"

namespace oscar {

namespace {

std::string_view kind(const GgufValue& value) {
  constexpr std::string_view names[] = {"an integer",
                                        "an integer",
                                        "a float",
                                        "a bool",
                                        "a string",
                                        "an array of strings",
                                        "an array of integers",
                                        "an array of floats",
                                        "an array of bools",
                                        "an array of arrays"};
  static_assert(std::size(names) == std::variant_size_v<decltype(GgufValue::value)>);
  return names[value.value.index()];
}

const GgufValue* lookup(const GgufFile& file, const std::string& key) {
  const auto entry = file.metadata().find(key);
  return entry == file.metadata().end() ? nullptr : &entry->second;
}
std::runtime_error mismatch(const GgufFile& file, const std::string& key, std::string_view expected,
                            const GgufValue& found) {
  const auto entry = std::ranges::find(file.entries(), key, &GgufEntry::key);
  const auto at = entry->bytes.data() - file.file()->bytes().data();
  return failure("{}: offset {}: metadata '{}': expected {}, found {}", file.file()->path().string(), at, key,
                 expected, kind(found));
}
template <typename T>
const T* get(const GgufFile& file, const std::string& key, std::string_view expected) {
  const auto* found = lookup(file, key);
  if (!found) return nullptr;
  if (const auto* value = std::get_if<T>(&found->value)) return value;
  throw mismatch(file, key, expected, *found);
}
template <typename T>
std::optional<T> copied(const T* value) {
  return value ? std::optional<T>(*value) : std::nullopt;
}

}  // namespace

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto tensor = std::ranges::find(tensors_, name, &GgufTensor::name);
  return tensor == tensors_.end() ? nullptr : &*tensor;
}

std::optional<int64_t> GgufFile::integer(const std::string& key) const {
  const auto* found = lookup(*this, key);
  if (!found) return std::nullopt;
  if (const auto* value = std::get_if<int64_t>(&found->value)) return *value;
  if (const auto* value = std::get_if<uint64_t>(&found->value); value && std::in_range<int64_t>(*value)) {
    return static_cast<int64_t>(*value);
  }
  throw mismatch(*this, key, "an integer below 2^63", *found);
}
std::optional<double> GgufFile::number(const std::string& key) const {
  const auto* found = lookup(*this, key);
  if (!found) return std::nullopt;
  if (const auto* value = std::get_if<double>(&found->value)) return *value;
  if (const auto* value = std::get_if<int64_t>(&found->value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<uint64_t>(&found->value)) return static_cast<double>(*value);
  throw mismatch(*this, key, "a number", *found);
}
std::optional<bool> GgufFile::boolean(const std::string& key) const {
  return copied(get<bool>(*this, key, "a bool"));
}
std::optional<std::string> GgufFile::text(const std::string& key) const {
  return copied(get<std::string>(*this, key, "a string"));
}
const std::vector<std::string>* GgufFile::texts(const std::string& key) const {
  return get<std::vector<std::string>>(*this, key, "an array of strings");
}
const std::vector<int64_t>* GgufFile::integers(const std::string& key) const {
  return get<std::vector<int64_t>>(*this, key, "an array of integers");
}
const std::vector<double>* GgufFile::numbers(const std::string& key) const {
  return get<std::vector<double>>(*this, key, "an array of floats");
}

}  // namespace oscar
