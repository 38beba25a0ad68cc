// A .pt file with one thing in it changed, and what its reader then says.
#pragma once
#include <cstdlib>
#include <functional>

#include "formats/error.h"
#include "libcalib/artifacts/pt_fields.h"
#include "tests/calib/method_support.h"

namespace oscar::test {

using pt_fields::pt;

inline PtDict& as_dict(PtValue& value) {
  return std::get<PtDict>(value.value);
}
template <typename Key>
PtDict& dict_in(PtDict& dict, Key key) {
  return as_dict(const_cast<PtValue&>(*dict.find(key)));
}
inline void remove(PtDict& dict, const std::string& name) {
  const size_t before = dict.items.size();
  std::erase_if(dict.items, [&](const auto& item) {
    const auto* text = std::get_if<std::string>(&item.first.value);
    return text && *text == name;
  });
  ASSERT_EQ(dict.items.size() + 1, before) << name;
}
inline std::vector<std::string> names_of(const PtDict& dict) {
  std::vector<std::string> names;
  for (const auto& [key, value] : dict.items) names.push_back(key.text("key"));
  return names;
}

// Copies `from` to `to`, its top dict changed.
using Change = std::function<void(PtDict& file)>;
inline void change(const fs::path& from, const fs::path& to, const Change& how) {
  PtValue root = read_pt(from);
  how(as_dict(root));
  write_pt(to, root, "changed");
}

// Heads [first, first + count) of a tensor (outer, heads, …).
inline Tensor heads_of(const Tensor& tensor, int64_t outer, int64_t heads, int64_t first, int64_t count) {
  Shape shape = tensor.shape;
  shape[outer == 1 ? 0 : 1] = count;
  const size_t head = tensor.bytes.size() / static_cast<size_t>(outer * heads);
  std::vector<std::byte> bytes;
  for (int64_t t = 0; t < outer; ++t) {
    const auto from = tensor.bytes.subspan(static_cast<size_t>(t * heads + first) * head,
                                           static_cast<size_t>(count) * head);
    bytes.insert(bytes.end(), from.begin(), from.end());
  }
  return make_tensor(tensor.dtype, shape, std::move(bytes));
}

// torch.load(weights_only=True) and then `check` on x, where OSCAR_TEST_PYTHON has torch.
inline void load_in_torch(const fs::path& path, const std::string& check) {
  const char* python = std::getenv("OSCAR_TEST_PYTHON");
  if (!python || !*python) return;
  const auto outcome =
      run({python, "-c", "import sys, torch\nx = torch.load(sys.argv[1], weights_only=True)\n" + check,
           path.string()});
  EXPECT_EQ(outcome.code, 0) << outcome;
}

inline void expect_said(const std::string& said, const std::string& part) {
  EXPECT_NE(said.find(part), std::string::npos) << "expected: " << part << "\nfound: " << said;
}

}  // namespace oscar::test
