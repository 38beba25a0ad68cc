#include "formats/gguf.h"

#include <chrono>

#include "formats/error.h"
#include "tests/formats/malformed.h"

namespace oscar {
namespace {

using test::packed;
using test::TempDir;

std::string text(const std::string& value) {
  return packed(uint64_t{value.size()}, std::string_view(value));
}
std::string entry(const std::string& key, uint32_t type, const std::string& value) {
  return text(key) + packed(type) + value;
}

struct TensorInfo {
  std::string name;
  std::vector<uint64_t> ne;  // fastest first
  uint32_t type;
  uint64_t offset;
  uint32_t dims = ~0u;  // to lie about their number
};

// A file from its parts, each of which may be a lie.
struct Draft {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> entries;
  std::vector<TensorInfo> tensors;
  std::string data;
  uint64_t extra_tensors = 0, extra_entries = 0;
  size_t alignment = 32;

  std::string bytes() const {
    auto out = magic + packed(version, uint64_t{tensors.size()} + extra_tensors,
                              uint64_t{entries.size()} + extra_entries);
    for (const auto& part : entries) out += part;
    for (const auto& tensor : tensors) {
      out += text(tensor.name) +
             packed(tensor.dims == ~0u ? static_cast<uint32_t>(tensor.ne.size()) : tensor.dims);
      for (const auto extent : tensor.ne) test::put(out, extent);
      out += packed(tensor.type, tensor.offset);
    }
    if (!data.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
};
GgufFile load(const Draft& draft) {
  TempDir folder;
  test::write(folder / "a.gguf", draft.bytes());
  return GgufFile::open(folder / "a.gguf");
}

Draft sample() {
  Draft draft;
  draft.entries = {
      entry("u8", 0, packed(uint8_t{200})),
      entry("i8", 1, packed(int8_t{-3})),
      entry("u16", 2, packed(uint16_t{60000})),
      entry("i16", 3, packed(int16_t{-300})),
      entry("u32", 4, packed(uint32_t{4000000000u})),
      entry("i32", 5, packed(int32_t{-70000})),
      entry("f32", 6, packed(1.5f)),
      entry("bool", 7, packed(uint8_t{1})),
      entry("text", 8, text("llama")),
      entry("u64", 10, packed(~uint64_t{0})),
      entry("i64", 11, packed(int64_t{-1} << 40)),
      entry("f64", 12, packed(0.1)),
      entry("texts", 9, packed(uint32_t{8}, uint64_t{2}) + text("a") + text("")),
      entry("ints", 9, packed(uint32_t{5}, uint64_t{2}, int32_t{1}, int32_t{-2})),
      entry("floats", 9, packed(uint32_t{6}, uint64_t{1}, 2.5f)),
      entry("bools", 9, packed(uint32_t{7}, uint64_t{2}, uint8_t{1}, uint8_t{0})),
      entry("nested", 9, packed(uint32_t{9}, uint64_t{1}, uint32_t{4}, uint64_t{1}, uint32_t{7})),
      entry("nothing", 9, packed(uint32_t{8}, uint64_t{0})),
  };
  draft.tensors = {{"w", {4, 2}, 0, 0}, {"q", {32, 1}, 2, 32}};
  draft.data = packed(0.f, 1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f) + std::string(18, 'q');
  return draft;
}

TEST(Gguf, EveryValueType) {
  const auto file = load(sample());
  EXPECT_EQ(file.integer("u8"), 200);
  EXPECT_EQ(file.integer("i8"), -3);
  EXPECT_EQ(file.integer("u16"), 60000);
  EXPECT_EQ(file.integer("i16"), -300);
  EXPECT_EQ(file.integer("u32"), 4000000000);
  EXPECT_EQ(file.integer("i32"), -70000);
  EXPECT_EQ(file.integer("i64"), int64_t{-1} << 40);
  EXPECT_EQ(file.number("f32"), 1.5);
  EXPECT_EQ(file.number("f64"), 0.1);
  EXPECT_EQ(file.number("u8"), 200);
  EXPECT_EQ(file.boolean("bool"), true);
  EXPECT_EQ(file.text("text"), "llama");
  EXPECT_EQ(*file.texts("texts"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(*file.integers("ints"), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(*file.numbers("floats"), (std::vector<double>{2.5}));
  EXPECT_EQ(file.metadata().at("bools").value.index(), 8u);
  const auto& nested = std::get<GgufArray>(file.metadata().at("nested").value);
  EXPECT_EQ(std::get<std::vector<int64_t>>(nested.at(0).value), (std::vector<int64_t>{7}));
  EXPECT_TRUE(file.texts("nothing")->empty());
  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_EQ(file.texts("absent"), nullptr);
  EXPECT_REFUSED(file.integer("text"), "metadata 'text': expected an integer below 2^63, found a string");
  EXPECT_REFUSED(file.integer("u64"), "below 2^63");
  EXPECT_REFUSED(file.texts("ints"), "expected an array of strings, found an array of integers");
}
TEST(Gguf, TensorsAreRowMajorViews) {
  const auto file = load(sample());
  const auto* w = file.find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->type->name, "F32");
  EXPECT_EQ(w->shape, (Shape{2, 4}));
  ASSERT_EQ(w->bytes.size(), 32u);
  float last;
  std::memcpy(&last, w->bytes.data() + 28, 4);
  EXPECT_EQ(last, 7);
  EXPECT_EQ(file.find("q")->bytes.size(), 18u);
  EXPECT_EQ(file.find("x"), nullptr);
}
TEST(Gguf, Version2AndAnotherAlignment) {
  auto draft = sample();
  draft.version = 2;
  draft.alignment = 64;
  draft.entries.push_back(entry("general.alignment", 4, packed(uint32_t{64})));
  draft.tensors[1].offset = 64;
  draft.data.insert(32, 32, '\0');
  EXPECT_EQ(static_cast<char>(load(draft).find("q")->bytes[0]), 'q');
}
TEST(Gguf, HeaderLies) {
  const auto with = [](auto change) {
    auto draft = sample();
    change(draft);
    return draft;
  };
  EXPECT_REFUSED(load(with([](Draft& d) { d.magic = "GGML"; })), "is not a GGUF file");
  EXPECT_REFUSED(load(with([](Draft& d) { d.version = 1; })), "version 1");
  EXPECT_REFUSED(load(with([](Draft& d) { d.version = 4; })), "version 4");
  EXPECT_REFUSED(load(with([](Draft& d) { d.version = 3u << 24; })), "big-endian");
  EXPECT_REFUSED(load(with([](Draft& d) { d.extra_tensors = uint64_t{1} << 60; })),
                 "the number of tensors is");
  EXPECT_REFUSED(load(with([](Draft& d) { d.extra_entries = uint64_t{1} << 60; })),
                 "the number of metadata entries is");
  EXPECT_REFUSED(load(with([](Draft& d) { d.entries.push_back(d.entries[0]); })), "'u8' appears twice");
  const auto value = [&](uint32_t type, const std::string& bytes) {
    return with([&](Draft& d) { d.entries.push_back(entry("lie", type, bytes)); });
  };
  EXPECT_REFUSED(load(value(13, "")), "'lie' has the unknown value type 13");
  EXPECT_REFUSED(load(value(7, "\2")), "bool of value 2");
  EXPECT_REFUSED(load(value(9, packed(uint32_t{99}, uint64_t{0}))), "unknown element type 99");
  EXPECT_REFUSED(load(value(9, packed(uint32_t{0}, ~uint64_t{0}))), "lie");
  EXPECT_REFUSED(load(value(9, packed(uint32_t{8}, uint64_t{1} << 61))), "is 2305843009213693952, but");
  EXPECT_REFUSED(load(value(9, packed(uint32_t{10}, uint64_t{1}, ~uint64_t{0}))), "above 2^63 - 1");
  EXPECT_REFUSED(load(value(8, packed(~uint64_t{0}))), "needs 18446744073709551615 bytes");
  std::string deep = packed(uint32_t{0}, uint64_t{0});
  for (int i = 0; i < 5; ++i) deep = packed(uint32_t{9}, uint64_t{1}) + deep;
  EXPECT_REFUSED(load(value(9, deep)), "deeper than 4");
  for (const uint32_t alignment : {0u, 3u, 48u}) {
    EXPECT_REFUSED(
        load(with([&](Draft& d) { d.entries.push_back(entry("general.alignment", 4, packed(alignment))); })),
        "power of two");
  }
}
TEST(Gguf, TensorLies) {
  const auto with = [](TensorInfo info) {
    auto draft = sample();
    draft.tensors[1] = info;
    return draft;
  };
  EXPECT_REFUSED(load(with({"w", {32}, 2, 32})), "tensor 'w' appears twice");
  EXPECT_REFUSED(load(with({"q", {32}, 77, 32})), "tensor 'q': unknown ggml type 77");
  EXPECT_REFUSED(load(with({"q", {32}, 77, 32})), "private to single forks");
  EXPECT_REFUSED(load(with({"q", {32}, 36, 32})), "removed from ggml");
  EXPECT_REFUSED(load(with({"q", {32}, 42, 32})), "not whole Q2_0 blocks of 64");
  EXPECT_REFUSED(load(with({"q", {31}, 2, 32})), "rows of 31 elements are not whole Q4_0 blocks of 32");
  EXPECT_REFUSED(load(with({"q", {32}, 2, 33})), "offset 33 is not a multiple");
  EXPECT_REFUSED(load(with({"q", {64}, 2, 32})), "truncated");
  EXPECT_REFUSED(load(with({"q", {32}, 2, uint64_t{1} << 62})), "truncated");
  EXPECT_REFUSED(load(with({"q", {32}, 2, 0})), "tensors 'w' and 'q' overlap");
  EXPECT_REFUSED(load(with({"q", {~uint64_t{0}}, 2, 32})), "2^63");
  EXPECT_REFUSED(load(with({"q", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 32})), "too large");
  EXPECT_REFUSED(load(with({"q", {1, 1, 1, 1, 1}, 0, 32})), "5 dimensions");
  EXPECT_REFUSED(load(with({"q", {32}, 2, 32, 0xffffffff - 1})), "dimensions");
  EXPECT_REFUSED(load(with({std::string(65536, 'n'), {32}, 2, 32})), "65535");
  EXPECT_COMPLAINT(GgufFile::open("/no/such.gguf"), "No such file");
}
TEST(Gguf, FaultsNameTheOffsetOfTheirEntry) {
  auto draft = sample();
  draft.tensors[1].offset = uint64_t{1} << 62;
  const auto bytes = draft.bytes();
  EXPECT_REFUSED(load(draft),
                 fmt::format("offset {}: tensor 'q'", bytes.find(text("q") + packed(uint32_t{2}))));
  EXPECT_REFUSED(load(sample()).integer("text"),
                 fmt::format("offset {}: metadata 'text'", sample().bytes().find(text("text"))));
}
// A byte in the file that becomes eight, 15 that become a node of a map.
TEST(Gguf, MetadataThatExpandsIsRefused) {
  Draft ints;
  ints.entries = {entry("big", 9, packed(uint32_t{0}, uint64_t{20 << 20}) + std::string(20 << 20, '\0'))};
  EXPECT_REFUSED(load(ints), "refused");
  Draft many;
  for (int i = 0; i < 1000000; ++i) many.entries.push_back(entry(std::to_string(i), 0, "a"));
  EXPECT_REFUSED(load(many), "refused");
}
TEST(Gguf, BlockSizes) {
  struct Row {
    uint32_t id;
    std::string_view name;
    int64_t block;
    size_t bytes;
  };
  for (const auto& row :
       {Row{0, "F32", 1, 4}, Row{3, "Q4_1", 32, 20}, Row{8, "Q8_0", 32, 34}, Row{12, "Q4_K", 256, 144},
        Row{14, "Q6_K", 256, 210}, Row{30, "BF16", 1, 2}, Row{39, "MXFP4", 32, 17}}) {
    const auto* type = find_ggml_type(row.id);
    ASSERT_NE(type, nullptr);
    EXPECT_EQ(type->name, row.name);
    EXPECT_EQ(type->block, row.block);
    EXPECT_EQ(type->bytes, row.bytes);
  }
  EXPECT_EQ(find_ggml_type(4), nullptr);
}
TEST(Gguf, Prefixes) {
  test::refuse_prefixes(sample().bytes(), GgufFile::open);
}
TEST(Gguf, Mutants) {
  test::survive_mutants(sample().bytes(), [](const auto& path) {
    unsigned sum = 0;
    const auto file = GgufFile::open(path);
    for (const auto& tensor : file.tensors()) sum += static_cast<unsigned>(tensor.shape.size());
    ASSERT_LT(sum, 1000u);
  });
}
TEST(Gguf, ALargeVocabularyLoadsInAMoment) {
  std::string words = packed(uint32_t{8}, uint64_t{150000});
  for (int i = 0; i < 150000; ++i) words += text("token" + std::to_string(i));
  Draft draft;
  draft.entries = {entry("tokens", 9, words)};
  TempDir folder;
  test::write(folder / "a.gguf", draft.bytes());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(GgufFile::open(folder / "a.gguf").texts("tokens")->back(), "token149999");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}
TEST(Gguf, ARealModel) {
  OSCAR_NEED_MODEL(path);
  const auto file = GgufFile::open(path);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.find("token_embd.weight")->shape, (Shape{49152, 576}));
  EXPECT_EQ(file.texts("tokenizer.ggml.tokens")->size(), 49152u);
}

// Number 42 means blocks of 18 bytes upstream and of 12 for half as many elements in one fork: told by the
// room that a tensor has.
TEST(Gguf, APrivateTypeUnderATakenNumberIsRefused) {
  for (const bool last : {false, true}) {
    Draft draft;
    const auto make = [&](uint64_t bytes) {
      draft.tensors = {{"q", {512}, 42, 0}};
      const uint64_t padded = (bytes + 31) / 32 * 32;
      if (!last) draft.tensors.push_back({"w", {8}, 0, padded});
      draft.data = std::string(padded + (last ? 0 : 32), 'x');
      return load(draft);
    };
    EXPECT_EQ(make(8 * 18).find("q")->bytes.size(), 144u);
    EXPECT_REFUSED(make(16 * 12), "private Q2_0");
  }
}

}  // namespace
}  // namespace oscar
