// The subset of torch.save that data needs: a zip of one pickle and raw storages. Nothing is ever executed:
// the reader knows dict, OrderedDict, list, tuple, str, int, float, bool, None and tensors, and refuses every
// other global by name.
#pragma once
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/tensor.h"

namespace oscar {

struct PtValue;
struct PtNone {};
struct PtList {
  std::vector<PtValue> items;
};
struct PtTuple {
  std::vector<PtValue> items;
};
struct PtDict {  // in file order; keys may be of any hashable kind
  std::vector<std::pair<PtValue, PtValue>> items;
  PtDict();  // all in pt.cpp: here a PtValue is not complete
  PtDict(const PtDict&);
  PtDict(PtDict&&) noexcept;
  PtDict& operator=(const PtDict&);
  PtDict& operator=(PtDict&&) noexcept;
  ~PtDict();
  const PtValue* find(std::string_view key) const;
  const PtValue* find(int64_t key) const;
  void set(std::string key, PtValue value);
  void set(int64_t key, PtValue value);
};

struct PtValue {
  std::variant<PtNone, bool, int64_t, double, std::string, Tensor, PtList, PtTuple, PtDict> value;

  // The content as T, or std::runtime_error "{where}: expected a dict, found a str".
  const PtDict& dict(const std::string& where) const;
  const Tensor& tensor(const std::string& where) const;
  const std::string& text(const std::string& where) const;
  int64_t integer(const std::string& where) const;
  std::string_view kind() const;  // "dict", "tensor", …
};

// Zip members stored or deflated, pickle protocols 2 to 5, tensors of any stride over shared storages (made
// contiguous here). Big-endian files and the pre-zip format are refused by name.
PtValue read_pt(const std::filesystem::path& path);

// What torch.load(weights_only=True) takes: protocol 2, members stored and aligned to 64 bytes, no
// timestamps. The same value gives the same bytes, whatever the file is called: the top folder is
// `archive_name`. Atomic.
void write_pt(const std::filesystem::path& path, const PtValue& value, const std::string& archive_name);

}  // namespace oscar
