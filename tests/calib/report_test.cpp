// JSON and text of reports, reading a choice of clip ratios back, and bounds.
#include "libcalib/report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "libcalib/bounds.h"
#include "tests/support/support.h"

namespace oscar::test {
namespace {

LayerDiagnostics layer(int id, double kl, double output) {
  LayerDiagnostics d{.layer = id, .attention_kl = kl, .top1 = 0.9, .output_error = output};
  d.snr_k = INFINITY;
  d.head_kl = {kl, kl};
  d.head_output_error = {output, output};
  return d;
}
VerifyReport sample() {
  VerifyReport report;
  report.windows = {64, 256};
  report.first_query = 320;
  report.probes = {0, 1};
  report.probe_tokens = {4096, 4000};
  report.path = "packed INT2, CPU avx2";
  report.provenance.model_name = "toy";
  report.provenance.model_digest = "abc";
  report.rows.push_back({.name = "naive",
                         .k = {.codec = "sglang-prefill", .objective = "identity", .bits = 2.5},
                         .v = {.codec = "sglang-prefill", .objective = "identity", .bits = 2.5},
                         .mean = layer(-1, 0.5, 0.4),
                         .layers = {layer(0, 0.25, 0.3), layer(7, 0.75, 0.5)}});
  report.rows.push_back(
      {.name = "mine",
       .k = {.codec = "sglang-prefill", .objective = "qqt_r_h_pbr", .clip = .96, .bits = 2.5},
       .v = {.codec = "sglang-prefill", .objective = "sst_r_h_pbr", .clip = .92, .bits = 2.5},
       .mean = layer(-1, 0.1, 0.05),
       .layers = {layer(0, 0.05, 0.02), layer(7, 0.15, 0.08)}});
  return report;
}
ClipReport sample_clip() {
  ClipReport report;
  report.codec = "sglang-prefill";
  report.group_size_k = report.group_size_v = 64;
  report.objective_k = "qqt_r_h_pbr";
  report.objective_v = "sst_r_h_pbr";
  report.options.probes = {2, 3};
  report.provenance.model_digest = "abc";
  const ClipCurve k{{0, .9, .96}, {.3, .1, .2}, .9, .1, .96, .2}, v{{0, .92}, {.1, .2}, 0, .1, .92, .2};
  report.k = {{3, k}};
  report.v = {{3, v}};
  report.model_k = k;
  report.model_v = v;
  return report;
}

TEST(Report, VerifyJsonHasItsSchema) {
  const auto json = to_json(sample());
  EXPECT_EQ(json["schema"], "oscar-verify/1");
  EXPECT_EQ(json["windows"]["sink"], 64);
  EXPECT_EQ(json["probe_tokens"][1], 4000);
  EXPECT_EQ(json["path"], "packed INT2, CPU avx2");
  EXPECT_EQ(json["provenance"]["model_name"], "toy");
  ASSERT_EQ(json["rows"].size(), 2u);
  const auto& row = json["rows"][1];
  EXPECT_EQ(row["name"], "mine");
  EXPECT_EQ(row["bits_k"], 2.5);
  EXPECT_EQ(row["clip_v"], .92);
  for (const char* key : {"attention_kl", "output_error", "logit_error", "top1"}) {
    EXPECT_TRUE(row["mean"][key].is_number()) << key;
    EXPECT_TRUE(row["layers"][0][key].is_number()) << key;
  }
  EXPECT_EQ(row["layers"][1]["layer"], 7);
  EXPECT_EQ(row["layers"][1]["head_kl"].size(), 2u);
  EXPECT_TRUE(row["mean"]["snr_k"].is_null());
  EXPECT_FALSE(row["mean"].contains("layer"));
  EXPECT_EQ(json.dump(), to_json(sample()).dump());
}

TEST(Report, VerifyTextIsSortedByKl) {
  const auto text = to_text(sample(), false);
  EXPECT_LT(text.find("\nmine"), text.find("\nnaive")) << text;
  EXPECT_NE(text.find("0.1000"), std::string::npos) << text;
  EXPECT_NE(text.find("qqt_r_h_pbr / sst_r_h_pbr, clip 0.96 / 0.92"), std::string::npos) << text;
  EXPECT_EQ(text.find("worst head"), std::string::npos);
  const auto layers = to_text(sample(), true);
  EXPECT_NE(layers.find("worst head"), std::string::npos) << layers;
  EXPECT_NE(layers.find("\n7 "), std::string::npos) << layers;
}

// Bits of two layers are not those of the model.
TEST(Report, VerifyTextNamesTheLayersOfAPart) {
  VerifyReport report = sample();
  report.provenance.layers_total = 2;
  EXPECT_NE(to_text(report, false).find("probes and layers\n"), std::string::npos) << to_text(report, false);
  report.provenance.layers_total = 8;
  EXPECT_NE(to_text(report, false).find("layers 0, 7 (bits too)\n"), std::string::npos)
      << to_text(report, false);
  report.rows[0].end_to_end = EndToEndResult{};
  EXPECT_NE(to_text(report, false).find("(bits too); end to end with every layer\n"), std::string::npos)
      << to_text(report, false);
}

TEST(Report, ClipIsReadBack) {
  TempDir folder;
  write(folder / "clip.json", to_json(sample_clip()).dump());
  const auto choice = read_clip(folder / "clip.json");
  EXPECT_EQ(choice.model_k, .9);
  EXPECT_EQ(choice.model_v, 0);
  EXPECT_EQ(choice.k, (std::map<int, double>{{3, .9}}));
  EXPECT_EQ(choice.v, (std::map<int, double>{{3, 0}}));
  EXPECT_EQ(choice.objective_k, "qqt_r_h_pbr");
  EXPECT_EQ(choice.probes, (std::vector<int>{2, 3}));
}

TEST(Report, ClipSaysHowToServe) {
  const auto json = to_json(sample_clip());
  EXPECT_EQ(json["schema"], "oscar-clip/1");
  EXPECT_EQ(json["serving"]["environment"]["SGLANG_OSCAR_K_CLIP_RATIO"], "0.9");
  EXPECT_EQ(json["serving"]["environment"]["SGLANG_OSCAR_V_CLIP_RATIO"], "0");
  EXPECT_EQ(json["serving"]["environment"]["SGLANG_MIXED_KV_PREFIX_TOKENS"], "64");
  EXPECT_EQ(json["k"]["curve"]["ratio"].size(), 3u);
  EXPECT_EQ(json["k"]["hand_loss"], .2);
  EXPECT_EQ(json["k"]["layers"][0]["layer"], 3);
  const auto text = to_text(sample_clip());
  EXPECT_NE(text.find("SGLANG_OSCAR_K_CLIP_RATIO=0.9"), std::string::npos) << text;
  EXPECT_NE(text.find("--kv-cache-quant-group-size 64"), std::string::npos) << text;
  EXPECT_NE(text.find("0.96 would lose 0.2000 (+100.0 %)"), std::string::npos) << text;
}

TEST(Report, RefusesWhatIsNoClipReport) {
  TempDir folder;
  const auto refused = [&](const std::string& text, const char* part) {
    write(folder / "clip.json", text);
    try {
      read_clip(folder / "clip.json");
      ADD_FAILURE() << text;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused("{", "found no JSON");
  refused("[]", "found none");
  refused(to_json(sample()).dump(), "found oscar-verify/1");
  refused(R"({"schema": 3})", "found none");
  refused(R"({"schema": "oscar-clip/1", "k": {}})", "damaged");
  auto json = to_json(sample_clip());
  json["k"]["layers"][0]["ratio"] = 2;
  refused(json.dump(), "clip ratio 2");
  EXPECT_THROW(read_clip(folder / "absent.json"), std::invalid_argument);
}

TEST(Bounds, NameRowLayerAndValue) {
  const auto report = sample();
  EXPECT_TRUE(exceeded(report, {"mine"}, {.max_kl = 0.15, .max_output_error = 0.08}).empty());
  const auto lines = exceeded(report, {"naive", "mine"}, {.max_kl = 0.1, .max_output_error = {}});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "row 'naive', layer 7: attention_kl 0.75 exceeds the bound 0.1 (2 of 2 layers do)");
  EXPECT_EQ(lines[1], "row 'mine', layer 7: attention_kl 0.15 exceeds the bound 0.1 (1 of 2 layers do)");
  EXPECT_THROW(exceeded(report, {"other"}, {}), std::invalid_argument);
}

TEST(Bounds, WhatIsNotANumberExceedsThemAll) {
  auto report = sample();
  for (auto& layer : report.rows[1].layers) layer.attention_kl = 0.01;
  EXPECT_TRUE(exceeded(report, {"mine"}, {.max_kl = 0.1, .max_output_error = {}}).empty());
  report.rows[1].layers[1].attention_kl = NAN;
  const auto lines = exceeded(report, {"mine"}, {.max_kl = 0.1, .max_output_error = {}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "row 'mine', layer 7: attention_kl nan exceeds the bound 0.1 (1 of 2 layers do)");
}

TEST(Bounds, ABaselineWithoutAnyOfTheRowsIsRefused) {
  TempDir folder;
  write(folder / "report.json", to_json(sample()).dump());
  auto report = sample();
  report.rows[0].name = "renamed";
  EXPECT_TRUE(regressions(report, folder / "report.json", 0).empty());
  report.rows[1].name = "renamed too";
  try {
    regressions(report, folder / "report.json", 0);
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("naive, mine: nothing can be compared"), std::string::npos)
        << error.what();
  }
}

TEST(Bounds, ABaselineAllowsWhatItSays) {
  TempDir folder;
  const auto path = folder / "report.json";
  write(path, to_json(sample()).dump());
  auto report = sample();
  EXPECT_TRUE(regressions(report, path, 0).empty());
  report.rows[1].layers[0].attention_kl *= 1.05;
  EXPECT_TRUE(regressions(report, path, 0.1).empty());
  const auto lines = regressions(report, path, 0.02);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("row 'mine', layer 0: attention_kl was 0.05"), std::string::npos) << lines[0];
  report.probes = {0, 2};
  EXPECT_THROW(regressions(report, path, 0.02), std::invalid_argument);
  write(path, "{}");
  EXPECT_THROW(regressions(sample(), path, 0), std::runtime_error);
}

}  // namespace
}  // namespace oscar::test
