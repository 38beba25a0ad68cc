// Published files, read, written and read again: every value bit for bit.
#include "formats/pt.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

bool same(const PtValue& a, const PtValue& b);
bool same(const std::vector<PtValue>& a, const std::vector<PtValue>& b) {
  return std::ranges::equal(a, b, [](const PtValue& x, const PtValue& y) { return same(x, y); });
}
bool same(const PtValue& a, const PtValue& b) {
  if (a.value.index() != b.value.index()) return false;
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        const auto& y = std::get<T>(b.value);
        if constexpr (std::is_same_v<T, PtNone>) {
          return true;
        } else if constexpr (std::is_same_v<T, Tensor>) {
          return x.dtype == y.dtype && x.shape == y.shape && std::ranges::equal(x.bytes, y.bytes);
        } else if constexpr (std::is_same_v<T, PtList> || std::is_same_v<T, PtTuple>) {
          return same(x.items, y.items);
        } else if constexpr (std::is_same_v<T, PtDict>) {
          return std::ranges::equal(x.items, y.items, [](const auto& m, const auto& n) {
            return same(m.first, n.first) && same(m.second, n.second);
          });
        } else {
          return x == y;
        }
      },
      a.value);
}

TEST(Published, EveryFileIsWrittenAgainWithTheSameValues) {
  OSCAR_NEED_DATA(data, "oscar-qwen3-4b-thinking");
  test::TempDir folder;
  int files = 0;
  for (const auto& entry : test::fs::recursive_directory_iterator(data.parent_path())) {
    if (entry.path().extension() != ".pt") continue;
    const auto value = read_pt(entry.path());
    write_pt(folder / "again.pt", value, entry.path().stem().string());
    EXPECT_TRUE(same(value, read_pt(folder / "again.pt"))) << entry.path();
    // Tensors that share a storage still do: a Hadamard file of ten layers holds one matrix.
    EXPECT_LT(test::fs::file_size(folder / "again.pt"), 1.05 * static_cast<double>(entry.file_size()))
        << entry.path();
    ++files;
  }
  EXPECT_GE(files, 9);
}

}  // namespace
}  // namespace oscar
