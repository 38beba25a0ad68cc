#include "libcalib/artifacts/pt_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "formats/error.h"

namespace oscar::pt_fields {

PtTuple tuple(std::initializer_list<int64_t> numbers) {
  PtTuple result;
  for (const int64_t number : numbers) result.items.push_back(pt(number));
  return result;
}

Tensor matrices_tensor(const std::vector<Matrix>& matrices, bool stacked) {
  const int64_t d = matrices.at(0).rows(), count = static_cast<int64_t>(matrices.size());
  std::vector<float> values;
  for (const Matrix& m : matrices) {
    for (Eigen::Index i = 0; i < m.size(); ++i) values.push_back(static_cast<float>(m.data()[i]));
  }
  return make_tensor(stacked ? Shape{count, d, d} : Shape{d, d}, std::move(values));
}

Tensor vectors_tensor(const std::vector<Vector>& vectors, bool stacked) {
  const int64_t d = vectors.at(0).size(), count = static_cast<int64_t>(vectors.size());
  std::vector<float> values;
  for (const Vector& v : vectors) {
    for (Eigen::Index i = 0; i < v.size(); ++i) values.push_back(static_cast<float>(v[i]));
  }
  return make_tensor(stacked ? Shape{count, d} : Shape{d}, std::move(values));
}

int layer_id(std::string_view text, const std::string& where) {
  int id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0)
    throw failure("{}: '{}' is not a layer id", where, text);
  return id;
}

int layer_id(const PtValue& key, const std::string& where) {
  if (const auto* text = std::get_if<std::string>(&key.value)) return layer_id(*text, where);
  return layer_id(std::to_string(key.integer(where)), where);
}

const PtValue* Fields::find(const char* name) const {
  const PtValue* value = dict_->find(name);
  return value && !std::holds_alternative<PtNone>(value->value) ? value : nullptr;
}

const PtValue& Fields::need(const char* name) const {
  if (const PtValue* value = find(name)) return *value;
  throw failure("{}: '{}' is missing", where_, name);
}

int64_t Fields::integer(const char* name, int64_t least, int64_t most) const {
  const int64_t value = need(name).integer(where(name));
  if (value < least || value > most) {
    throw failure("{}: {}: expected {}{}, found {}", where_, name, least,
                  most == std::numeric_limits<int64_t>::max() ? " or more" : fmt::format(" to {}", most),
                  value);
  }
  return value;
}

std::optional<double> Fields::number(const char* name) const {
  const PtValue* value = find(name);
  if (!value) return std::nullopt;
  if (const auto* whole = std::get_if<int64_t>(&value->value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value->value); real && std::isfinite(*real)) return *real;
  throw failure("{}: {}: expected a finite number, found a {}", where_, name, value->kind());
}

bool Fields::flag(const char* name, bool otherwise) const {
  const PtValue* value = find(name);
  if (!value) return otherwise;
  if (const auto* truth = std::get_if<bool>(&value->value)) return *truth;
  throw failure("{}: {}: expected a bool, found a {}", where_, name, value->kind());
}

const Tensor& Fields::floats(const char* name, const Shape& shape) const {
  return need_floats(need(name).tensor(where(name)), shape, where(name));
}
std::vector<double> Fields::finite(const char* name, const Shape& shape) const {
  return need_finite(need(name).tensor(where(name)), shape, where(name));
}

const Tensor& need_floats(const Tensor& tensor, const Shape& shape, const std::string& where) {
  constexpr DType kFloats[] = {DType::F64, DType::F32, DType::F16, DType::BF16};
  const bool same = std::ranges::equal(
      tensor.shape, shape, [](int64_t found, int64_t expected) { return expected < 0 || found == expected; });
  if (!same || std::ranges::find(kFloats, tensor.dtype) == std::end(kFloats)) {
    throw failure("{}: expected {} of floats, found {} {}", where, to_string(shape), info(tensor.dtype).name,
                  to_string(tensor.shape));
  }
  return tensor;
}

std::vector<double> need_finite(const Tensor& tensor, const Shape& shape, const std::string& where) {
  auto values = need_floats(tensor, shape, where).doubles();
  if (!std::ranges::all_of(values, [](double x) { return std::isfinite(x); }))
    throw failure("{}: not all numbers are finite", where);
  return values;
}

const std::vector<PtValue>& items_of(const PtValue& value, const std::string& where) {
  if (const auto* list = std::get_if<PtList>(&value.value)) return list->items;
  if (const auto* tuple = std::get_if<PtTuple>(&value.value)) return tuple->items;
  throw failure("{}: expected a list, found a {}", where, value.kind());
}

}  // namespace oscar::pt_fields
