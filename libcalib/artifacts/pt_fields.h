// Values of .pt files: what every reader and writer of this folder takes apart or puts together.
#pragma once
#include <initializer_list>
#include <limits>
#include <optional>

#include "formats/pt.h"
#include "libcalib/types.h"

namespace oscar::pt_fields {

// Not an initialiser list: GCC 12 then warns of an uninitialised variant, wrongly.
template <typename T>
PtValue pt(T content) {
  PtValue value;
  value.value = std::move(content);
  return value;
}
inline PtValue pt(const char* text) {
  return pt(std::string(text));
}
PtTuple tuple(std::initializer_list<int64_t> numbers);

// `values` are the bytes of `dtype`: fp16 as uint16_t.
template <typename T>
PtValue tensor(DType dtype, Shape shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return pt(make_tensor(dtype, std::move(shape), std::vector<std::byte>(bytes.begin(), bytes.end())));
}
// Float32: one as [d, d] or [d], or all of them stacked as [n, d, d] or [n, d].
Tensor matrices_tensor(const std::vector<Matrix>& matrices, bool stacked);
Tensor vectors_tensor(const std::vector<Vector>& vectors, bool stacked);

// The id of a layer, an int or its digits as a str; std::runtime_error "{where}: 'x' is not a layer id".
int layer_id(std::string_view text, const std::string& where);
int layer_id(const PtValue& key, const std::string& where);

// A dict with the words that lead every message about it. What is read throws std::runtime_error:
// "m.pt: layer 3: 'M_q' is missing", "m.pt: layer 3: M_q: expected [2, 16, 16], found F32 [2, 8, 8]".
class Fields {
 public:
  Fields(const PtValue& value, std::string where) : dict_(&value.dict(where)), where_(std::move(where)) {}
  const std::string& where() const { return where_; }
  std::string where(const char* name) const { return where_ + ": " + name; }

  const PtValue* find(const char* name) const;  // nullptr where it is absent, or None
  const PtValue& need(const char* name) const;
  const std::string& text(const char* name) const { return need(name).text(where(name)); }
  int64_t integer(const char* name, int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) const;
  std::optional<double> number(const char* name) const;  // an int, a float, or nothing
  bool flag(const char* name, bool otherwise) const;
  // Of floats, of this shape: -1 is any extent.
  const Tensor& floats(const char* name, const Shape& shape) const;
  std::vector<double> finite(const char* name,
                             const Shape& shape) const;  // floats() without NaN and infinity

 private:
  const PtDict* dict_;
  std::string where_;
};

// `tensor` as Fields::floats wants it, and its numbers as Fields::finite does; `where` names it.
const Tensor& need_floats(const Tensor& tensor, const Shape& shape, const std::string& where);
std::vector<double> need_finite(const Tensor& tensor, const Shape& shape, const std::string& where);
// Items of a list or a tuple.
const std::vector<PtValue>& items_of(const PtValue& value, const std::string& where);

}  // namespace oscar::pt_fields
