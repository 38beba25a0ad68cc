// codes.safetensors: what is read back codes alike, and damage is refused by name.
#include "libcalib/artifacts/codes_file.h"

#include <fmt/format.h>

#include "formats/safetensors.h"
#include "libcalib/artifacts/rotation_file.h"
#include "tests/calib/codec_support.h"
#include "tests/calib/pt_support.h"

namespace oscar::test {
namespace {

const char* kSpecifications[] = {"turboquant:qjl=1",      "awvq:norm=1:stored=e4m3", "awvq:stored=fp16",
                                 "oscar:centre=weighted", "awsq:bits=1.5:norm=1",    "naive/awvq",
                                 "oscar-dc:groups=2"};
std::vector<std::string> specifications() {
  std::vector<std::string> all(std::begin(kSpecifications), std::end(kSpecifications));
  for (const auto& method : method_table()) all.emplace_back(method.name);
  return all;
}

std::vector<float> queries_of(const LayerStatistics& layer, const Transform& transform) {
  std::vector<float> out(layer.rows.k.size() / 2);
  transform.queries(layer.rows.k.data(), 64, layer.rows.count(), 32, out.data());
  return out;
}

TEST(CodesFile, WhatIsReadBackCodesBitForBitAlike) {
  const TempDir folder;
  for (const auto& name : specifications()) {
    SCOPED_TRACE(name);
    const CacheCodes written = fitted(name).codes;
    write_codes(folder / "codes.safetensors", written, {});
    const CacheCodes found = read_codes(folder / "codes.safetensors");
    EXPECT_EQ(found.name, written.name);
    for (const Side side : {Side::K, Side::V}) {
      const SideCodes &a = side_of(written, side), &b = side_of(found, side);
      EXPECT_EQ(b.objective, a.objective);
      EXPECT_EQ(codec_names(b), codec_names(a));
      ASSERT_EQ(b.layers.size(), a.layers.size());
      for (const auto& [id, heads] : a.layers) {
        ASSERT_EQ(b.layers.at(id).size(), heads.size());
        for (size_t h = 0; h < heads.size(); ++h) {
          const HeadCode &one = heads[h], &other = b.layers.at(id)[h];
          const auto& layer = method_layers().at(id);
          const auto rows = coded_rows(layer, side, static_cast<int>(h), one.transform);
          ASSERT_EQ(coded_rows(layer, side, static_cast<int>(h), other.transform), rows);
          ASSERT_EQ(decoded(*other.codec, rows, 32, other.options),
                    decoded(*one.codec, rows, 32, one.options));
          EXPECT_EQ(queries_of(layer, other.transform), queries_of(layer, one.transform));
          EXPECT_EQ(other.eigenvalues.size(), one.eigenvalues.size());
        }
      }
    }
    write_codes(folder / "again.safetensors", found, {});
    EXPECT_TRUE(read(folder / "again.safetensors") == read(folder / "codes.safetensors"));
  }
}

TEST(CodesFile, WordsAreKeptAsSmallAsTheyAre) {
  const TempDir folder;
  for (const auto& [name, dtype] : {std::pair{"awvq", DType::I8},
                                    {"awvq:stored=fp16", DType::F16},
                                    {"nova", DType::F16},
                                    {"awsq", DType::F32}}) {
    write_codes(folder / "codes.safetensors", fitted(name).codes, {});
    const auto file = read_safetensors(folder / "codes.safetensors");
    EXPECT_EQ(file.tensors.at("layers.2.k.0.words").dtype, dtype) << name;
    EXPECT_EQ(file.tensors.contains("layers.2.k.0.scales"), dtype == DType::I8) << name;
  }
}

// One lie each.
class Damage : public testing::Test {
 protected:
  void SetUp() override {
    write_codes(folder_ / "good.safetensors", fitted("awvq/oscar").codes, {});
    good_ = read_safetensors(folder_ / "good.safetensors");
  }
  void refused(const std::function<void(SafeTensors&)>& spoil, const std::string& part) {
    SafeTensors file = good_;
    spoil(file);
    write_safetensors(folder_ / "bad.safetensors", file);
    const auto said = message_of<std::runtime_error>([&] { read_codes(folder_ / "bad.safetensors"); });
    EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
    EXPECT_NE(said.find("bad.safetensors"), std::string::npos) << said;
  }
  void without(const std::string& tensor) {
    refused([&](SafeTensors& file) { ASSERT_EQ(file.tensors.erase(tensor), 1u); },
            "tensor " + tensor + " is missing");
  }
  void replaced(const std::string& what, const std::string& by, const std::string& part) {
    refused(
        [&](SafeTensors& file) {
          auto& text = file.metadata["codes"];
          const auto at = text.find(what);
          ASSERT_NE(at, std::string::npos) << what << " in " << text.substr(0, 400);
          text.replace(at, what.size(), by);
        },
        part);
  }
  template <typename T>
  void tensor(const std::string& name, Shape shape, std::vector<T> values, const std::string& part) {
    refused([&](SafeTensors& file) { file.tensors[name] = make_tensor(shape, values); }, part);
  }
  TempDir folder_;
  SafeTensors good_;
};

TEST_F(Damage, MissingTensors) {
  for (const char* name : {"forward", "inverse", "mean", "eigenvalues", "groups", "words", "scales"})
    without(fmt::format("layers.5.k.1.{}", name));
  without("layers.2.v.0.forward");
}

TEST_F(Damage, ShapesAndNumbers) {
  const std::string head = "layers.2.k.0.";
  tensor(head + "forward", {32, 16}, std::vector<float>(512), "expected a square matrix, found [32, 16]");
  tensor(head + "forward", {16, 16}, std::vector<float>(256, 1), "expected head dim 16, found 32");
  tensor(head + "mean", {16}, std::vector<float>(16), head + "mean: expected head dim 32, found 16");
  tensor(head + "mean", {1, 32}, std::vector<float>(32), head + "mean: expected a vector, found [1, 32]");
  tensor(head + "mean", {32}, std::vector<float>(32, NAN), head + "mean: not all numbers are finite");
  tensor(head + "inverse", {32, 32}, std::vector<float>(1024, INFINITY),
         "inverse: not all numbers are finite");
  tensor(head + "groups", {16}, std::vector<int32_t>(16, 4), "expected [groups, 2], found [16]");
  tensor(head + "groups", {8, 2}, std::vector<float>(16, 4), "bad.safetensors");
  tensor(head + "groups", {1, 2}, std::vector<int32_t>{4, 17}, "group 0: 4 channels of 17 bits");
  tensor(head + "groups", {1, 2}, std::vector<int32_t>{-4, 8}, "group 0: -4 channels");
  tensor(head + "groups", {1, 2}, std::vector<int32_t>{4, 8}, "are too few for its groups");
  tensor(head + "words", {100}, std::vector<float>(100), "100 numbers and 8 scales are too few");
  tensor(head + "words", {9000}, std::vector<float>(9000), "9000 numbers, its groups need 8192");
  tensor(head + "words", {8192}, std::vector<float>(8192, NAN), "group 0: not all numbers are finite");
  tensor(head + "scales", {3}, std::vector<float>(3, 1), "3 scales are too few");
}

TEST_F(Damage, Metadata) {
  replaced("\"codec\":\"vector\"", "\"codec\":\"int1\"", "unknown codec 'int1'");
  replaced("\"codec\":\"vector\",", "", "damaged metadata 'codes'");
  replaced("\"groups\":1", "\"groups\":\"one\"", "damaged metadata 'codes'");
  replaced("\"groups\":1", "\"groups\":0", "layers.2.k.0: groups is 0, expected a whole number from 1");
  replaced("\"groups\":1", "\"groups\":-4", "groups is -4");
  replaced("\"groups\":1", "\"groups\":1.5", "groups is 1.5");
  replaced("\"clip\":0.0", "\"clip\":-1", "layers.2.k.0: clip is -1, expected a ratio from 0 (off) to 1");
  replaced("\"clip\":0.0", "\"clip\":1.01", "clip is 1.01");
  replaced("\"clip\":0.0", "\"clip\":0.0,\"seed\":-1", "seed is -1, expected a whole number from 0");
  replaced("\"clip\":0.0", "\"clip\":0.0,\"seed\":1.5", "seed is 1.5");
  replaced("\"5\":[", "\"02\":[", "layer 2 is there twice");
  replaced("{\"k\"", "{\"q\"", "damaged metadata 'codes'");
  replaced("{\"k\"", "[", "damaged metadata 'codes'");
  replaced("\"2\":[", "\"two\":[", "'two' is not a layer id");
  replaced("\"2\":[", "\"99999999999999\":[", "'99999999999999' is not a layer id");
  replaced("\"2\":[", "\"-2\":[", "'-2' is not a layer id");
  replaced("\"2\":[", "\"3\":[", "tensor layers.3.k.0.forward is missing");
  refused([](SafeTensors& file) { file.metadata.erase("codes"); }, "damaged metadata 'codes'");
  refused([](SafeTensors& file) { file.metadata.erase("schema"); },
          "expected schema oscar-codes/1, found none");
  refused([](SafeTensors& file) { file.metadata["schema"] = "oscar-codes/9"; }, "found oscar-codes/9");
  refused(
      [](SafeTensors& file) {
        file.metadata["codes"] = R"({"k":{"objective":"x","layers":{}},"v":{"objective":"x","layers":{}}})";
      },
      "no layers of k");
}

TEST_F(Damage, TruncatedAndAbsentFiles) {
  const auto whole = read(folder_ / "good.safetensors");
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    write(folder_ / "bad.safetensors", whole.substr(0, size));
    EXPECT_THROW(read_codes(folder_ / "bad.safetensors"), std::runtime_error) << size;
  }
  EXPECT_THROW(read_codes(folder_ / "nothing.safetensors"), std::invalid_argument);
}

TEST(VersionThree, LoadsInTorch) {
  const TempDir folder;
  for (const char* name : {"center", "flat", "outaware"}) {
    const auto codes = fitted(name).codes;
    write_rotations_pt(folder / "k.pt", rotation_set(codes.k));
    write_rotations_pt(folder / "v.pt", rotation_set(codes.v));
    const std::string part = name == std::string("center") ? "k_mean"
                             : name == std::string("flat") ? "q_rotation"
                                                           : "";
    load_in_torch(
        folder / "k.pt",
        "layer = x['layers'][5]\nassert layer['rotation'].shape == (2, 32, 32) and layer['layer_id'] == 5\n" +
            (part.empty() ? "" : "assert x['format_version'] == 3 and '" + part + "' in layer\n"));
    load_in_torch(folder / "v.pt", name == std::string("outaware") ? "assert 'o_rotation' in x['layers'][2]\n"
                                                                   : "x['layers'][2]['rotation']\n");
    for (const char* file : {"k.pt", "v.pt"})
      EXPECT_NO_THROW(read_rotations(folder / file)) << name << ' ' << file;
  }
}

}  // namespace
}  // namespace oscar::test
