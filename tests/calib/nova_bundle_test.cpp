// codebook.pt: what is written is what the engine reads, and what is read codes as it did.
#include "libcalib/artifacts/nova_bundle.h"

#include "formats/dtype.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "tests/calib/codec_support.h"
#include "tests/calib/pt_support.h"

namespace oscar::test {
namespace {

TEST(NovaBundle, HasTheStructureThatTheEngineReads) {
  const TempDir folder;
  for (const char* name : {"nova", "awvq:norm=1"}) {
    const SideCodes keys = fitted(name).codes.k;
    ASSERT_TRUE(is_nova_bundle(keys)) << name;
    write_nova_bundle(folder / kNovaFile, keys);
    const PtValue root = read_pt(folder / kNovaFile);
    const PtDict& file = root.dict("bundle");
    std::vector<std::string> names;
    for (const auto& [key, value] : file.items) names.push_back(key.text("key"));
    EXPECT_EQ(names, (std::vector<std::string>{"forward", "inverse", "mean", "codebooks", "bounds",
                                               "grouping", "allocation", "whiten", "ecvq_lambda",
                                               "pertoken_norm", "bits_per_coord", "G"}));
    const auto& forward = file.find("forward")->tensor("");
    EXPECT_EQ(forward.dtype, DType::F64);
    EXPECT_EQ(forward.shape, (Shape{2, 2, 32, 32}));
    EXPECT_EQ(file.find("inverse")->tensor("").shape, (Shape{2, 2, 32, 32}));
    EXPECT_EQ(file.find("mean")->tensor("").dtype, DType::F32);
    EXPECT_EQ(file.find("mean")->tensor("").shape, (Shape{2, 2, 32}));
    // Layer 5 is the engine's layer 1; its head 1 is the last matrix.
    const HeadCode& last = keys.of(5, 1);
    EXPECT_EQ(Matrix(ConstMatrixMap(forward.doubles().data() + 3 * 32 * 32, 32, 32)), last.transform.forward);
    const PtDict& books = file.find("codebooks")->dict("");
    ASSERT_EQ(books.items.size(), 4u);
    const auto& key = std::get<PtTuple>(books.items[3].first.value).items;
    ASSERT_EQ(key.size(), 2u);
    EXPECT_EQ(key[0].integer(""), 1);
    EXPECT_EQ(key[1].integer(""), 1);
    const auto& groups = std::get<PtList>(books.items[3].second.value).items;
    ASSERT_EQ(groups.size(), 8u);
    const Tensor& words = groups[7].tensor("");
    EXPECT_EQ(words.dtype, DType::F16);
    EXPECT_EQ(words.shape, (Shape{256, 4}));
    std::vector<float> halves = last.options.codebook->groups[7].words;
    for (float& word : halves) word = f16_to_float(float_to_f16(word));
    EXPECT_EQ(words.floats(), halves);
    const auto& bounds = std::get<PtList>(file.find("bounds")->value).items;
    ASSERT_EQ(bounds.size(), 8u);
    const auto& bound = std::get<PtTuple>(bounds[7].value).items;
    ASSERT_EQ(bound.size(), 3u);
    EXPECT_EQ(bound[0].integer(""), 28);
    EXPECT_EQ(bound[1].integer(""), 32);
    EXPECT_EQ(bound[2].integer(""), 8);
    EXPECT_EQ(std::get<bool>(file.find("pertoken_norm")->value), true);
    EXPECT_EQ(std::get<double>(file.find("bits_per_coord")->value), 2.0);
    EXPECT_EQ(file.find("G")->integer(""), 4);
    load_in_torch(folder / kNovaFile,
                  "assert x['codebooks'][(1, 1)][7].shape == (256, 4) and x['codebooks'][(0, 0)][0].dtype == "
                  "torch.float16\nassert x['bounds'][7] == (28, 32, 8) and x['whiten'] is False\n"
                  "assert x['forward'].dtype == torch.float64 and x['mean'].shape == (2, 2, 32)\n");
  }
  EXPECT_FALSE(is_nova_bundle(fitted("awvq").codes.k));
  for (const char* name : {"awvq:norm=1:shape=8x8", "awsq:norm=1", "oscar"}) {
    const SideCodes keys = fitted(name).codes.k;
    EXPECT_FALSE(is_nova_bundle(keys)) << name;
    EXPECT_THROW(write_nova_bundle(folder / "x.pt", keys), std::invalid_argument) << name;
  }
  EXPECT_FALSE(is_nova_bundle(fitted("awvq:norm=1").codes.v));
}

std::vector<float> rows_through(const HeadCode& code, int layer, int head) {
  const auto rows = coded_rows(method_layers().at(layer), Side::K, head, code.transform);
  return decoded(*code.codec, rows, 32, code.options);
}

// A model that mixes head dims is fitted all the same: codes.safetensors holds its keys, the bundle has no place for them.
TEST(NovaBundle, LayersOfTwoGeometriesHaveNone) {
  FitInput input{method_layers(), {}};
  input.layers[7] = full_statistics(shape_of(7, 2, 1, 64, 64), kTokens, 7);
  FitRecord record;
  record.method = parse_method("nova");
  record.result = fit(input, record.method, {});
  EXPECT_FALSE(is_nova_bundle(record.result.codes.k));
  const TempDir folder;
  write_fit_directory(folder / "out", record, {RotationFormat::Pt});
  EXPECT_FALSE(fs::exists(folder / "out" / kNovaFile));
  EXPECT_EQ(read_codes(folder / "out" / kCodesFile).k.layers.size(), 3u);
}

TEST(NovaBundle, WhatIsReadBackCodesBitForBitAlike) {
  const TempDir folder;
  for (const char* name : {"nova", "awvq:norm=1:stored=fp16", "awvq:stored=fp16"}) {
    const SideCodes keys = fitted(name).codes.k;
    write_nova_bundle(folder / "a.pt", keys);
    const SideCodes found = read_nova_bundle(folder / "a.pt", {2, 5}),
                    local = read_nova_bundle(folder / "a.pt");
    EXPECT_EQ(is_nova_bundle(found), is_nova_bundle(keys));
    EXPECT_EQ(codec_names(found), codec_names(keys));
    ASSERT_EQ(found.layers.size(), 2u);
    for (const int id : {2, 5}) {
      for (const int head : {0, 1}) {
        const auto expected = rows_through(keys.of(id, head), id, head);
        EXPECT_EQ(rows_through(found.of(id, head), id, head), expected) << name;
        EXPECT_EQ(rows_through(local.of(id == 2 ? 0 : 1, head), id, head), expected) << name;
        EXPECT_EQ(found.of(id, head).transform.inverse, keys.of(id, head).transform.inverse);
      }
    }
    write_nova_bundle(folder / "b.pt", found);
    EXPECT_TRUE(read(folder / "b.pt") == read(folder / "a.pt")) << name;
  }
}

TEST(NovaBundle, WordsOfAnyFloatAreThoseThatTheEngineLoads) {
  const TempDir folder;
  write_nova_bundle(folder / "a.pt", fitted("nova").codes.k);
  const SideCodes expected = read_nova_bundle(folder / "a.pt");
  change(folder / "a.pt", folder / "b.pt", [](PtDict& file) {
    for (auto& [key, value] : dict_in(file, "codebooks").items) {
      for (PtValue& group : std::get<PtList>(value.value).items) {
        auto words = group.tensor("words").doubles();
        for (double& word : words) word *= 1 + 1e-5;  // less than half a step of fp16
        group = pt(make_tensor({256, 4}, std::move(words)));
      }
    }
    // As the engine's own synthetic bundle: no bits, no flags.
    for (PtValue& bound : std::get<PtList>(const_cast<PtValue&>(*file.find("bounds")).value).items)
      std::get<PtTuple>(bound.value).items[2] = pt(PtNone{});
    for (const char* name : {"grouping", "allocation", "whiten", "ecvq_lambda", "bits_per_coord", "G"})
      remove(file, name);
    file.set("synthetic", pt(true));
    file.set("fp8_fmt", pt("e5m2"));
  });
  const SideCodes found = read_nova_bundle(folder / "b.pt");
  EXPECT_EQ(bytes_of({"", found, {Side::V, "", found.layers}}),
            bytes_of({"", expected, {Side::V, "", expected.layers}}));
  change(folder / "a.pt", folder / "b.pt", [](PtDict& file) { remove(file, "pertoken_norm"); });
  EXPECT_FALSE(read_nova_bundle(folder / "b.pt").of(0, 0).options.codebook->norm);
}

TEST(NovaBundle, RefusesLies) {
  const TempDir folder;
  write_nova_bundle(folder / "good.pt", fitted("nova").codes.k);
  const auto refused = [&](const Change& spoil, const std::string& part) {
    change(folder / "good.pt", folder / "bad.pt", spoil);
    const auto said = message_of<std::runtime_error>([&] { read_nova_bundle(folder / "bad.pt"); });
    expect_said(said, part);
    expect_said(said, "bad.pt");
  };
  const auto groups_of = [](PtDict& file, size_t entry) -> std::vector<PtValue>& {
    return std::get<PtList>(dict_in(file, "codebooks").items[entry].second.value).items;
  };
  for (const char* name : {"forward", "inverse", "mean", "bounds", "codebooks"})
    refused([=](PtDict& file) { remove(file, name); }, fmt::format("'{}' is missing", name));
  refused(
      [](PtDict& file) {
        file.set("forward", pt(make_tensor({2, 2, 32, 16}, std::vector<double>(2048))));
      },
      "forward: expected [layers, heads, d, d]");
  refused(
      [](PtDict& file) {
        file.set("mean", pt(make_tensor({2, 2, 32}, std::vector<double>(128, NAN))));
      },
      "mean: not all numbers are finite");
  refused(
      [](PtDict& file) {
        file.set("mean", pt(make_tensor({2, 32}, std::vector<float>(64))));
      },
      "mean: expected [2, 2, 32] of floats, found F32 [2, 32]");
  refused([](PtDict& file) { file.set("inverse", *file.find("forward")); },
          "layer 0, head 0: forward times inverse is off the identity by");
  refused(
      [](PtDict& file) {
        std::get<PtList>(const_cast<PtValue&>(*file.find("bounds")).value).items.pop_back();
      },
      "bounds: expected 32 channels in consecutive groups of 4");
  refused(
      [](PtDict& file) {
        PtList bounds;
        for (int64_t i = 0; i < 4; ++i) bounds.items.push_back(pt(pt_fields::tuple({8 * i, 8 * i + 8, 8})));
        file.set("bounds", pt(bounds));
      },
      "bounds: expected 32 channels in consecutive groups of 4");
  refused(
      [](PtDict& file) { dict_in(file, "codebooks").items.erase(dict_in(file, "codebooks").items.begin()); },
      "codebooks: (0, 0) is missing");
  refused([](PtDict& file) { dict_in(file, "codebooks").items.pop_back(); }, "codebooks: (1, 1) is missing");
  refused([](PtDict& file) { dict_in(file, "codebooks").set("0", pt(PtList{})); },
          "expected keys (layer, head), found a str");
  refused([&](PtDict& file) { groups_of(file, 3).pop_back(); },
          "codebooks[(1, 1)]: expected 8 groups, found 7");
  refused(
      [&](PtDict& file) {
        groups_of(file, 2)[5] = pt(make_tensor({128, 4}, std::vector<float>(512)));
      },
      "codebooks[(1, 0)][5]: expected [256, 4] of floats, found F32 [128, 4]");
  refused(
      [&](PtDict& file) {
        groups_of(file, 0)[0] = pt(make_tensor({100, 4}, std::vector<float>(400)));
      },
      "codebooks[(0, 0)]: expected a power of two of at most 256 codewords, found 100");
  refused(
      [&](PtDict& file) {
        groups_of(file, 1)[0] = pt(make_tensor({256, 4}, std::vector<float>(1024, 7e4f)));
      },
      "codebooks[(0, 1)][0]: 70000 is beyond the fp16");
  const auto ids = [&](std::vector<int> given) {
    return message_of<std::invalid_argument>([&] { read_nova_bundle(folder / "good.pt", given); });
  };
  expect_said(ids({2}), "1 global layer ids for 2 layers");
  expect_said(ids({5, 2}), "the global layer ids must ascend: 5, 2");
}

}  // namespace
}  // namespace oscar::test
