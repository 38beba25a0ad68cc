#include "formats/gguf_writer.h"

#include "tests/formats/malformed.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

using test::TempDir;

const auto nothing = [](std::string_view) { return false; };
bool ours(std::string_view name) {
  return name.ends_with("_rot.weight") || name.starts_with("oscar.");
}

GgufAddition addition() {
  GgufAddition added;
  added.metadata = {{"oscar.text", {std::string("späß")}},
                    {"oscar.small", {int64_t{7}}},
                    {"oscar.large", {int64_t{-1} << 40}},
                    {"oscar.flag", {true}},
                    {"oscar.half", {0.5}},
                    {"oscar.ids", {std::vector<int64_t>{3, -1}}},
                    {"oscar.names", {std::vector<std::string>{"a", ""}}}};
  added.tensors = {{"blk.0.attn_k_rot.weight", make_tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6})}};
  return added;
}

TEST(GgufWriter, KeepsTheBaseByteForByteAndAdds) {
  TempDir folder;
  const auto base_path = folder / "base.gguf", out = folder / "out.gguf";
  test::write_gguf(base_path, test::toy_model());
  const auto base = GgufFile::open(base_path);
  write_gguf(out, base, nothing, addition());
  const auto copy = GgufFile::open(out);
  ASSERT_EQ(copy.tensors().size(), base.tensors().size() + 1);
  for (size_t i = 0; i < base.tensors().size(); ++i) {
    const auto &a = base.tensors()[i], &b = copy.tensors()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.type, b.type);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_TRUE(std::ranges::equal(a.bytes, b.bytes)) << a.name;
  }
  for (size_t i = 0; i < base.entries().size(); ++i)
    EXPECT_TRUE(std::ranges::equal(base.entries()[i].bytes, copy.entries()[i].bytes))
        << base.entries()[i].key;
  EXPECT_EQ(copy.text("oscar.text"), "späß");
  EXPECT_EQ(copy.integer("oscar.small"), 7);
  EXPECT_EQ(copy.integer("oscar.large"), int64_t{-1} << 40);
  EXPECT_EQ(copy.boolean("oscar.flag"), true);
  EXPECT_EQ(copy.number("oscar.half"), 0.5);
  EXPECT_EQ(*copy.integers("oscar.ids"), (std::vector<int64_t>{3, -1}));
  EXPECT_EQ(*copy.texts("oscar.names"), (std::vector<std::string>{"a", ""}));
  const auto* added = copy.find("blk.0.attn_k_rot.weight");
  ASSERT_NE(added, nullptr);
  EXPECT_EQ(added->shape, (Shape{2, 3}));
  EXPECT_EQ((Tensor{DType::F32, added->shape, added->bytes, nullptr}.floats()),
            (std::vector<float>{1, 2, 3, 4, 5, 6}));
  // Nothing added: the base again, to the byte.
  write_gguf(folder / "same.gguf", base, nothing, {});
  EXPECT_EQ(test::read(folder / "same.gguf"), test::read(base_path));
}

// A key or tensor that is written twice instead of replaced makes a file that others refuse.
TEST(GgufWriter, WritingAgainReplaces) {
  TempDir folder;
  const auto path = folder / "a.gguf";
  test::write_gguf(path, test::toy_model());
  write_gguf(path, GgufFile::open(path), ours, addition());
  const auto once = test::read(path);
  write_gguf(path, GgufFile::open(path), ours, addition());
  EXPECT_EQ(test::read(path), once);
  EXPECT_COMPLAINT(write_gguf(path, GgufFile::open(path), nothing, addition()),
                   "'blk.0.attn_k_rot.weight' is there already");
  GgufAddition key;
  key.metadata = {{"oscar.text", {true}}};
  EXPECT_COMPLAINT(write_gguf(path, GgufFile::open(path), nothing, key), "'oscar.text' is there already");
  GgufAddition strange;
  strange.tensors = {{"x", make_tensor(DType::U8, {1}, {std::byte{0}})}};
  EXPECT_COMPLAINT(write_gguf(path, GgufFile::open(path), nothing, strange), "no type for U8");
  EXPECT_EQ(test::read(path), once);
}

TEST(GgufWriter, KeepsAnotherAlignmentAndVersion) {
  TempDir folder;
  auto draft = test::toy_model();
  draft.set("general.alignment", uint32_t{256});
  draft.tensors.clear();  // the toy writer aligns to 32
  test::write_gguf(folder / "a.gguf", draft);
  auto bytes = test::read(folder / "a.gguf");
  bytes[4] = 2;
  test::write(folder / "a.gguf", bytes);
  const auto base = GgufFile::open(folder / "a.gguf");
  write_gguf(folder / "b.gguf", base, nothing, addition());
  const auto copy = GgufFile::open(folder / "b.gguf");
  EXPECT_EQ(copy.version(), 2u);
  EXPECT_EQ(copy.alignment(), 256u);
  EXPECT_EQ(copy.find("blk.0.attn_k_rot.weight")->bytes.size(), 24u);
}

}  // namespace
}  // namespace oscar
