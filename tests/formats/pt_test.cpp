#include "formats/pt.h"

#include "formats/zip.h"
#include "tests/formats/malformed.h"
#include "tests/formats/zip_draft.h"

namespace oscar {
namespace {

using test::TempDir;

PtValue load(const std::string& content) {
  TempDir folder;
  test::write(folder / "a.pt", content);
  return read_pt(folder / "a.pt");
}
PtValue sample() {
  PtDict layer;
  layer.set("layer_id", PtValue{int64_t{3}});
  layer.set("rotation", PtValue{make_tensor<float>({2, 2}, {1, 2, 3, 4})});
  PtDict layers;
  layers.set(int64_t{3}, PtValue{layer});
  PtDict root;
  root.set("format_version", PtValue{int64_t{1}});
  root.set("objective", PtValue{std::string("qqt_r_h_pbr")});
  root.set("layers", PtValue{layers});
  return {root};
}
std::string written(const PtValue& value, const std::string& archive = "k_rotation") {
  TempDir folder;
  write_pt(folder / "any.pt", value, archive);
  return test::read(folder / "any.pt");
}
void touch(const PtValue& value) {
  if (const auto* tensor = std::get_if<Tensor>(&value.value)) tensor->floats();
  if (const auto* dict = std::get_if<PtDict>(&value.value)) {
    for (const auto& [key, item] : dict->items) touch(item);
  }
}

TEST(Pt, RoundTripOfARotationFile) {
  const auto back = load(written(sample()));
  const auto& root = back.dict("file");
  EXPECT_EQ(root.find("format_version")->integer("version"), 1);
  EXPECT_EQ(root.find("objective")->text("objective"), "qqt_r_h_pbr");
  const auto& layer = root.find("layers")->dict("layers").find(int64_t{3})->dict("layer 3");
  const auto& rotation = layer.find("rotation")->tensor("rotation");
  expect(rotation, DType::F32, {2, 2}, "rotation");
  EXPECT_EQ(rotation.floats(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(root.find("absent"), nullptr);
  EXPECT_REFUSED(root.find("objective")->integer("here"), "here: expected an int, found str");
}
TEST(Pt, EveryDtypeAndShape) {
  PtDict root;
  for (const auto& row : dtype_table()) {
    if (row.torch_name.empty()) {
      EXPECT_COMPLAINT(written({make_tensor(row.dtype, {4}, std::vector<std::byte>(row.bits / 2))}),
                       "torch has no such dtype");
      continue;
    }
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{2, 3, 1, 4}}) {
      std::vector<std::byte> bytes(static_cast<size_t>(element_count(shape)) * row.size());
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 2);
      root.set(std::string(row.name) + to_string(shape), PtValue{make_tensor(row.dtype, shape, bytes)});
    }
  }
  const auto back = load(written({root}));
  ASSERT_EQ(back.dict("file").items.size(), root.items.size());
  for (const auto& [key, value] : root.items) {
    const auto& name = key.text("key");
    const auto& expected = value.tensor(name);
    const auto& found = back.dict("file").find(name)->tensor(name);
    expect(found, expected.dtype, expected.shape, name);
    EXPECT_TRUE(std::ranges::equal(found.bytes, expected.bytes)) << name;
  }
}
TEST(Pt, EveryKindOfValue) {
  PtList list;
  for (const int64_t value :
       {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65535}, int64_t{65536}, int64_t{-1}, int64_t{-129},
        int64_t{1} << 31, -(int64_t{1} << 31), -(int64_t{1} << 31) - 1, int64_t{1} << 39, int64_t{1} << 55,
        std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    list.items.push_back({value});
  }
  const size_t integers = list.items.size();
  list.items.push_back({0.1});
  list.items.push_back({true});
  list.items.push_back({PtNone{}});
  list.items.push_back({std::string("späß")});
  list.items.push_back({PtTuple{}});
  list.items.push_back({PtTuple{{{int64_t{1}}, {int64_t{2}}, {int64_t{3}}, {int64_t{4}}}}});
  list.items.push_back({PtList{}});
  list.items.push_back({PtDict{}});
  PtDict keyed;
  keyed.items.emplace_back(PtValue{PtTuple{{{int64_t{0}}, {int64_t{1}}}}}, PtValue{1.5});
  list.items.push_back({keyed});
  for (int64_t i = 0; i < 2500; ++i) list.items.push_back({i});  // more than one batch

  const auto back = load(written({list}));
  const auto& items = std::get<PtList>(back.value).items;
  ASSERT_EQ(items.size(), list.items.size());
  for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(items[i].kind(), list.items[i].kind()) << i;
  for (size_t i = 0; i < integers; ++i) EXPECT_EQ(items[i].integer(""), list.items[i].integer("")) << i;
  EXPECT_EQ(std::get<double>(items[integers].value), 0.1);
  EXPECT_EQ(items[integers + 3].text(""), "späß");
  EXPECT_EQ(std::get<PtTuple>(items[integers + 5].value).items[3].integer(""), 4);
  const auto& key = items[integers + 8].dict("").items[0].first;
  EXPECT_EQ(std::get<PtTuple>(key.value).items[1].integer(""), 1);
}
TEST(Pt, SameContentSameBytesUnderAnyName) {
  TempDir folder;
  write_pt(folder / "one.pt", sample(), "top");
  write_pt(folder / "two.pt", sample(), "top");
  EXPECT_EQ(test::read(folder / "one.pt"), test::read(folder / "two.pt"));
  EXPECT_NE(written(sample(), "a"), written(sample(), "b"));
  EXPECT_COMPLAINT(write_pt(folder / "x.pt", sample(), "a/b"), "top folder");
}
TEST(Pt, TensorsOverTheSameBytesAreStoredOnce) {
  const auto tensor = make_tensor<float>({100, 100}, std::vector<float>(10000, 1));
  PtList list;
  for (int i = 0; i < 10; ++i) list.items.push_back({tensor});
  const auto bytes = written({list});
  EXPECT_LT(bytes.size(), 2 * tensor.bytes.size());
  const auto back = load(bytes);
  const auto& items = std::get<PtList>(back.value).items;
  EXPECT_EQ(items[9].tensor("").bytes.data(), items[0].tensor("").bytes.data());
  EXPECT_EQ(items[9].tensor("").floats(), tensor.floats());
}
TEST(Pt, TensorsAreAlignedInTheFile) {
  TempDir folder;
  write_pt(folder / "a.pt", sample(), "top");
  const auto file = MappedFile::open(folder / "a.pt");
  auto budget = Budget::of_file(file->bytes().size());
  const ZipReader zip(file, budget);
  for (const auto& member : zip.members()) {
    EXPECT_EQ((zip.read(member, budget).bytes.data() - file->bytes().data()) % 64, 0) << member.name;
  }
}

using test::Zip;
const std::string kInteger = std::string("\x80\x02K\x07.", 5);
Zip plain() {
  return {{{"top/data.pkl", kInteger}, {"top/byteorder", "little"}, {"top/version", "3\n"}}};
}

TEST(Pt, ZipsOfOtherPrograms) {
  auto zip = plain();
  EXPECT_EQ(load(zip.bytes()).integer(""), 7);
  zip.deflate = false;
  EXPECT_EQ(load(zip.bytes()).integer(""), 7);
  zip.zip64 = true;
  EXPECT_EQ(load(zip.bytes()).integer(""), 7);
  zip.zip64 = false;
  EXPECT_EQ(
      load(zip.bytes().substr(0, zip.bytes().size() - 2) + test::packed(uint16_t{5}) + "hello").integer(""),
      7);
}
TEST(Pt, ZipLies) {
  const auto with = [](auto change) {
    auto zip = plain();
    change(zip);
    return load(zip.bytes());
  };
  EXPECT_REFUSED(load("hello"), "not a zip");
  EXPECT_REFUSED(load(""), "the file is empty");
  EXPECT_REFUSED(with([](Zip& z) { z.crc_lie = 1; }), "CRC");
  EXPECT_REFUSED(with([](Zip& z) { z.flags = 1; }), "encrypted");
  EXPECT_REFUSED(with([](Zip& z) { z.method_lie = 4; }), "compression method 12");
  EXPECT_REFUSED(with([](Zip& z) { z.size_lie = 1; }), "is not");
  EXPECT_REFUSED(with([](Zip& z) { z.size_lie = 0xf0000000; }), "refused");
  EXPECT_REFUSED(with([](Zip& z) { z.deflate = false, z.size_lie = 1; }), "two sizes");
  EXPECT_REFUSED(with([](Zip& z) { z.offset_lie = 1; }), "local header");
  EXPECT_REFUSED(with([](Zip& z) { z.offset_lie = 0x7fffffff; }), "after the end");
  EXPECT_REFUSED(with([](Zip& z) { z.members[1].second = "big"; }), "big-endian");
  EXPECT_REFUSED(with([](Zip& z) { z.members[1].second = "both"; }), "neither little nor big");
  EXPECT_REFUSED(with([](Zip& z) { z.members[2] = z.members[1]; }), "appears twice");
  EXPECT_REFUSED(with([](Zip& z) { z.members[2].first = "other/data.pkl"; }), "a second pickle");
  EXPECT_REFUSED(with([](Zip& z) { z.members[0].first = "top/data.json"; }),
                 "not a file that torch.save made");
  EXPECT_REFUSED(load(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15)),
                 "before 1.6");
  EXPECT_COMPLAINT(read_pt("/no/such.pt"), "No such file");
}
TEST(Pt, ADirectoryThatExpandsIsRefused) {
  Zip zip;
  zip.deflate = false;
  for (int i = 0; i < 65535; ++i) zip.members.emplace_back("top/" + std::to_string(i), "");
  zip.members[0] = {"top/data.pkl", kInteger};
  EXPECT_EQ(load(zip.bytes()).integer(""), 7);
  zip = plain();
  zip.size_lie = 1 << 25;  // less than the budget, more than deflate can make of a few bytes
  EXPECT_REFUSED(load(zip.bytes()), "is not 33554");
}
TEST(Pt, AFlippedBitInATensorIsFound) {
  auto bytes = written(sample());
  bytes[bytes.find(test::packed(1.f, 2.f, 3.f, 4.f)) + 5] ^= 1;
  EXPECT_REFUSED(load(bytes), "member 'k_rotation/data/0': CRC");
}
TEST(Pt, Prefixes) {
  test::refuse_prefixes(written(sample()), read_pt);
}
TEST(Pt, Mutants) {
  test::survive_mutants(written(sample()), [](const auto& path) { touch(read_pt(path)); });
  test::survive_mutants(plain().bytes(), [](const auto& path) { touch(read_pt(path)); });
}

TEST(Pt, FilesOfTorch) {
  OSCAR_NEED_DATA(folder, "oscar-qwen3-4b-thinking");
  const auto k = read_pt(folder / "k_rotation_qqt_r_h_pbr.pt");
  const auto& root = k.dict("k");
  EXPECT_EQ(root.find("objective")->text(""), "qqt_r_h_pbr");
  const auto& layers = root.find("layers")->dict("layers");
  EXPECT_EQ(layers.items.size(), 36u);
  // An orthogonal matrix: rows of length 1.
  const auto rotation = layers.find(int64_t{0})->dict("").find("rotation")->tensor("").floats();
  ASSERT_EQ(rotation.size(), 128u * 128u);
  double length = 0;
  for (size_t i = 0; i < 128; ++i) length += double{rotation[i]} * rotation[i];
  EXPECT_NEAR(length, 1, 1e-6);
  // What we write again is torch's file but for its serialization id, 40 digits and their CRC (stored twice).
  const auto ours = written(k, "k_rotation_qqt_r_h_pbr"),
             theirs = test::read(folder / "k_rotation_qqt_r_h_pbr.pt");
  ASSERT_EQ(ours.size(), theirs.size());
  size_t different = 0;
  for (size_t i = 0; i < ours.size(); ++i) different += ours[i] != theirs[i];
  EXPECT_LE(different, 48u);
}
TEST(Pt, EveryPublishedFileLoads) {
  OSCAR_NEED_DATA(root, "novakv-gptoss-20b");
  size_t files = 0;
  for (const auto& entry : test::fs::recursive_directory_iterator(root.parent_path())) {
    if (entry.path().extension() != ".pt") continue;
    touch(read_pt(entry.path()));
    ++files;
  }
  EXPECT_GE(files, 9u);
}

}  // namespace
}  // namespace oscar
