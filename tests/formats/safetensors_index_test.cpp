#include "formats/safetensors_index.h"

#include "tests/formats/malformed.h"

namespace oscar {
namespace {

using test::TempDir;

SafeTensors sample() {
  SafeTensors content;
  for (const char* name : {"a", "b", "c", "d"})
    content.tensors[name] = make_tensor<float>({4}, {1, 2, 3, static_cast<float>(name[0])});
  content.metadata["format"] = "pt";
  return content;
}
std::string index_of(const TempDir& folder) {
  return test::read(folder / kSafeTensorsIndex);
}

TEST(SafeTensorsIndex, ShardsBySizeAndReadsBack) {
  TempDir folder;
  write_sharded_safetensors(folder.path(), sample(), 32);
  EXPECT_TRUE(test::fs::exists(folder / "model-00002-of-00002.safetensors"));
  EXPECT_NE(index_of(folder).find("\"total_size\": 64"), std::string::npos);
  const auto all = read_sharded_safetensors(folder.path());
  ASSERT_EQ(all.shards.size(), 2u);
  EXPECT_TRUE(all.indexed);
  EXPECT_EQ(all.shards[0].content.metadata.at("format"), "pt");
  for (const auto& [name, tensor] : sample().tensors) {
    ASSERT_NE(all.find(name), nullptr) << name;
    EXPECT_EQ(all.find(name)->floats(), tensor.floats());
  }
  EXPECT_EQ(all.find("e"), nullptr);
  const auto before = index_of(folder);
  write_sharded_safetensors(folder.path(), all);
  EXPECT_EQ(index_of(folder), before);
}
TEST(SafeTensorsIndex, OneShardHasNoIndex) {
  TempDir folder;
  write_sharded_safetensors(folder.path(), sample(), 1 << 20);
  EXPECT_FALSE(test::fs::exists(folder / kSafeTensorsIndex));
  EXPECT_EQ(read_sharded_safetensors(folder.path()).shards.at(0).file, "model.safetensors");
}
// Files without an index are what some exporters leave; the same tensor in two of them is no one's guess to
// make.
TEST(SafeTensorsIndex, WithoutAnIndexATensorIsOnceThere) {
  TempDir folder;
  SafeTensors one = sample(), two;
  two.tensors["e"] = make_tensor<float>({1}, {1});
  write_safetensors(folder / "x-1.safetensors", one);
  write_safetensors(folder / "x-2.safetensors", two);
  EXPECT_NE(read_sharded_safetensors(folder.path()).find("e"), nullptr);
  write_safetensors(folder / "x-2.safetensors", one);
  EXPECT_REFUSED(read_sharded_safetensors(folder.path()),
                 "tensor 'a' is in x-1.safetensors and in x-2.safetensors");
}
// An index that omits a shard file, names one that is not there, or misses and invents tensors.
TEST(SafeTensorsIndex, DisagreementsAreNamedBeforeAnythingRuns) {
  TempDir folder;
  const auto index = [&](const std::string& map) {
    test::write(folder / kSafeTensorsIndex, "{\"weight_map\":{" + map + "}}");
  };
  SafeTensors one;
  one.tensors["a"] = one.tensors["b"] = make_tensor<float>({1}, {1});
  write_safetensors(folder / "m.safetensors", one);
  const auto load = [&] { return read_sharded_safetensors(folder.path()); };
  index(R"("a":"m.safetensors","b":"n.safetensors")");
  EXPECT_REFUSED(load(), "names files that are not there: n.safetensors");
  index(R"("a":"m.safetensors")");
  EXPECT_REFUSED(load(), "not in the index: b (m.safetensors)");
  index(R"("a":"m.safetensors","b":"m.safetensors","c":"m.safetensors")");
  EXPECT_REFUSED(load(), "missing in their files: c (m.safetensors)");
  index(R"("a":"../m.safetensors")");
  EXPECT_REFUSED(load(), "is not the name of a .safetensors file");
  index(R"("a":"m.safetensors","a":"m.safetensors")");
  EXPECT_REFUSED(load(), "'a' appears twice");
  index("");
  EXPECT_REFUSED(load(), "weight_map is empty");
  test::write(folder / kSafeTensorsIndex, "[]");
  EXPECT_REFUSED(load(), "expected an object with 'weight_map'");
  test::write(folder / kSafeTensorsIndex, "{");
  EXPECT_REFUSED(load(), kSafeTensorsIndex);
  // Anything beside the map is passed over, but is JSON.
  index(R"("a":"m.safetensors","b":"m.safetensors"},"metadata":{"x":[1,-2.5e+3,true,null,"\u00e4",{},[]])");
  EXPECT_NE(load().find("a"), nullptr);
  index(R"(},"metadata":)" + std::string(100, '['));
  EXPECT_REFUSED(load(), "nested deeper than 16");
  for (const std::string value : {"01", "-", "1.", "1e", "nul", "+1", "'a'"}) {
    index(R"(},"metadata":{"x":)" + value);
    EXPECT_REFUSED(load(), ": JSON: ");
  }
  index(R"("a":1)");
  EXPECT_REFUSED(load(), "offset 15: weight_map: 'a' is not a file name");
  index(R"("a":"m\u0000.safetensors")");
  EXPECT_REFUSED(load(), "is not the name of");
  index(R"("a":"m.safetensors"},"weight_map":{)");
  EXPECT_REFUSED(load(), "offset 36: 'weight_map' appears twice");
  TempDir empty;
  EXPECT_COMPLAINT(read_sharded_safetensors(empty.path()), "has no .safetensors file");
}

}  // namespace
}  // namespace oscar
