#include "formats/safetensors.h"

#include "formats/error.h"
#include "tests/formats/malformed.h"

namespace oscar {
namespace {

using test::TempDir;

std::string raw(const std::string& header, const std::string& data) {
  return test::packed(uint64_t{header.size()}, std::string_view(header)) + data;
}
SafeTensors load(const std::string& content) {
  TempDir folder;
  test::write(folder / "a.safetensors", content);
  return read_safetensors(folder / "a.safetensors");
}
SafeTensors with(const std::string& tensors, const std::string& data = std::string(8, 'd')) {
  return load(raw(tensors, data));
}

SafeTensors sample() {
  SafeTensors content;
  content.tensors["flag"] = make_tensor(DType::Bool, {1}, {std::byte{1}});
  content.tensors["a"] = make_tensor<float>({2, 2}, {1, 2, 3, 4});
  content.tensors["b"] = make_tensor<double>({}, {0.5});
  content.tensors["none"] = make_tensor<float>({0, 3}, {});
  content.metadata["model"] = "späß \"quoted\"";
  return content;
}
std::string written(const SafeTensors& content) {
  TempDir folder;
  write_safetensors(folder / "any name", content);
  return test::read(folder / "any name");
}

TEST(SafeTensors, RoundTrip) {
  const auto back = load(written(sample()));
  EXPECT_EQ(back.tensors.size(), 4u);
  EXPECT_EQ(back.tensors.at("a").floats(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(back.tensors.at("b").doubles()[0], 0.5);
  EXPECT_EQ(back.tensors.at("none").shape, (Shape{0, 3}));
  EXPECT_EQ(back.metadata.at("model"), "späß \"quoted\"");
}
TEST(SafeTensors, EveryDtype) {
  SafeTensors content;
  for (const auto& row : dtype_table()) {
    content.tensors[std::string(row.name)] =
        make_tensor(row.dtype, {4}, std::vector<std::byte>(4 * row.bits / 8, std::byte{1}));
  }
  const auto back = load(written(content));
  for (const auto& row : dtype_table()) EXPECT_EQ(back.tensors.at(std::string(row.name)).dtype, row.dtype);
}
TEST(SafeTensors, SameContentSameBytesAligned) {
  const auto bytes = written(sample());
  EXPECT_EQ(bytes, written(sample()));
  uint64_t header;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0u);
  const auto back = load(bytes);
  for (const auto& [name, tensor] : back.tensors) {
    if (tensor.bytes.empty()) continue;
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(tensor.bytes.data()) % std::max<size_t>(info(tensor.dtype).size(), 1), 0u)
        << name;
  }
}
TEST(SafeTensors, NothingAtAll) {
  EXPECT_TRUE(load(written({})).tensors.empty());
  EXPECT_TRUE(with("{}", "").tensors.empty());
}
TEST(SafeTensors, OneLieEach) {
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string b = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})";
  EXPECT_EQ(with("{" + a + "," + b + "}").tensors.size(), 2u);
  EXPECT_REFUSED(load(test::packed(uint64_t{1} << 40)), "truncated or is not safetensors");
  EXPECT_REFUSED(load(test::packed(~uint64_t{0})), "truncated or is not safetensors");
  EXPECT_REFUSED(with("[1]"), "offset 8: the header is not a JSON object");
  EXPECT_REFUSED(with("{\"a\":"), "offset 9: tensor 'a'");
  EXPECT_REFUSED(with("{" + a + "," + a + "}", "1234"), "'a' appears twice");
  EXPECT_REFUSED(with(R"({"__metadata__":{"k":"1","k":"2"},)" + a + "}", "1234"), "'k' appears twice");
  EXPECT_REFUSED(with(R"({"__metadata__":{"k":1},)" + a + "}", "1234"), "'k' is not a string");
  EXPECT_REFUSED(with(R"({"__metadata__":[],)" + a + "}", "1234"), "not an object");
  EXPECT_REFUSED(with("{" + a + "}"), "trailing bytes");
  EXPECT_REFUSED(with("{" + a + "," + b + "}", "1234567"), "truncated");
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return with(R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
                "}}");
  };
  EXPECT_EQ(tensor("\"F32\"", "[2]", "[0,8]").tensors.size(), 1u);
  EXPECT_REFUSED(tensor("\"F33\"", "[2]", "[0,8]"), "unknown dtype 'F33'");
  EXPECT_REFUSED(tensor("32", "[2]", "[0,8]"), "expected dtype");
  EXPECT_REFUSED(tensor("\"F32\"", "[3]", "[0,8]"), "does not have the 8 bytes");
  EXPECT_REFUSED(tensor("\"F32\"", "[-2]", "[0,8]"), "non-negative");
  EXPECT_REFUSED(tensor("\"F32\"", "[2.0]", "[0,8]"), "non-negative");
  EXPECT_REFUSED(tensor("\"F32\"", "[18446744073709551615]", "[0,8]"), "2^63");
  EXPECT_REFUSED(tensor("\"F32\"", "[4611686018427387904, 4]", "[0,8]"), "does not have");
  EXPECT_REFUSED(tensor("\"F32\"", "[2]", "[8,0]"), "does not have");
  EXPECT_REFUSED(tensor("\"F32\"", "[2]", "[4,12]"), "there is a gap");
  EXPECT_REFUSED(tensor("\"F32\"", "[2]", "[0,8,16]"), "two data_offsets");
  EXPECT_REFUSED(tensor("\"F32\"", "[[2]]", "[0,8]"), "non-negative");
  EXPECT_REFUSED(tensor("\"F32\"", "[[[[[[2]]]]]]", "[0,8]"), "non-negative");
  EXPECT_REFUSED(with("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", "123456"),
                 "overlap");
  EXPECT_REFUSED(with(R"({"a":{"dtype":"F32","shape":[2]}})"), "expected dtype");
  EXPECT_COMPLAINT(read_safetensors("/no/such"), "No such file");
}
TEST(SafeTensors, JsonIsStrict) {
  const auto text = [](const std::string& value) {
    return with(R"({"__metadata__":{"k":")" + value + "\"}}", "").metadata.at("k");
  };
  EXPECT_EQ(text(R"(\"\\\/\b\f\n\r\t\u00e4\u20ac\ud83d\ude00)"), "\"\\/\b\f\n\r\tä€😀");
  EXPECT_EQ(text("ä€😀"), "ä€😀");
  EXPECT_EQ(text(R"(\u0000)"), std::string(1, '\0'));
  for (const auto* bad : {"\n", "\\x", "\\u12", "\\u-123", "\\ud800", "\\ud800\\u0041", "\\udc00", "\xff",
                          "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    EXPECT_REFUSED(text(bad), "is not part of a string in UTF-8");
  }
  EXPECT_REFUSED(with(R"({"a" 1})", ""), "expected ':'");
  EXPECT_REFUSED(with(R"({"a":{},})", ""), "offset 9: tensor 'a'");
  EXPECT_REFUSED(with("{,}", ""), "offset 9: JSON: expected a key");
  EXPECT_REFUSED(with("{} x", ""), "offset 11: JSON: something follows");
  EXPECT_REFUSED(with("{", ""), "found the end of the text");
  EXPECT_REFUSED(with(R"({"a)", ""), "a string does not end");
}
// Of a header that is all of the file: what it becomes may take four times its size and 60 MiB.
TEST(SafeTensors, AHeaderThatExpandsIsRefused) {
  const auto refused = [](const std::string& opening, const std::function<std::string(int)>& item, int count,
                          const std::string& closing) {
    std::string header = opening;
    for (int i = 0; i < count; ++i) header += (i ? "," : "") + item(i);
    header += closing;
    EXPECT_REFUSED(with(header, ""), "refused");
  };
  refused(R"({"__metadata__":{)", [](int i) { return fmt::format(R"("{}":"")", i); }, 1500000, "}}");
  refused(R"({"a":{"dtype":"U8","data_offsets":[0,0],"shape":[)", [](int) { return "0"; }, 12000000, "]}}");
}
TEST(SafeTensors, WritersMistakes) {
  TempDir folder;
  SafeTensors content;
  content.tensors["__metadata__"] = make_tensor<float>({1}, {1});
  EXPECT_COMPLAINT(write_safetensors(folder / "a", content), "cannot be called");
  content.tensors.clear();
  content.metadata["bad"] = "\xff";
  EXPECT_COMPLAINT(write_safetensors(folder / "a", content), "UTF-8");
}
TEST(SafeTensors, Prefixes) {
  test::refuse_prefixes(written(sample()), read_safetensors);
}
TEST(SafeTensors, Mutants) {
  test::survive_mutants(written(sample()), [](const auto& path) {
    const auto content = read_safetensors(path);
    for (const auto& [name, tensor] : content.tensors) tensor.floats();
  });
}

}  // namespace
}  // namespace oscar
