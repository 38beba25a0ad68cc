// The four programs as a user chains them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/apps/tools.h"

namespace oscar::test {
namespace {

using Json = nlohmann::json;

TEST(Pipeline, ToyModelFromTextToReport) {
  const Bench bench;
  ASSERT_NO_FATAL_FAILURE(run_pipeline(bench));
  const auto report = Json::parse(read(bench / "report.json"));
  EXPECT_EQ(report.at("schema"), "oscar-verify/1");
  EXPECT_EQ(report.at("provenance").at("model_name"), "Toy");
  std::set<std::string> rows;
  for (const auto& row : report.at("rows")) {
    rows.insert(row.at("name"));
    EXPECT_EQ(row.at("layers").size(), 3u);
    EXPECT_TRUE(row.at("mean").at("attention_kl").is_number());
  }
  EXPECT_TRUE(rows.contains("rotations"));
  EXPECT_GE(rows.size(), 4u) << "the baselines are always beside the method";
  EXPECT_EQ(Json::parse(read(bench.clip())).at("schema"), "oscar-clip/1");
  EXPECT_EQ(Json::parse(read(bench / "rotations/manifest.json")).at("schema"), "oscar-rotations/1");
  for (const auto& name : bench.files()) EXPECT_EQ(name.find("partial"), std::string::npos) << name;
}

TEST(Pipeline, EveryWeightTypeOfTheToyModelGoesThrough) {
  for (const uint32_t type : {0u, 1u, 3u, 8u}) {
    ToyOptions options;
    options.weights = type;
    options.tied = type != 8;
    options.add_bos = type == 1;
    const Bench bench(options);
    const auto outcome = run(bench.dump_command(bench.stats()));
    EXPECT_EQ(outcome.code, 0) << "ggml type " << type << "\n" << outcome;
  }
}

TEST(Pipeline, ResultsOnStdoutTalkOnStderr) {
  const Bench bench;
  const auto dump = run(bench.dump_command(bench.stats()) + Arguments{"--json"});
  ASSERT_EQ(dump.code, 0) << dump;
  EXPECT_EQ(Json::parse(dump.out).at("schema"), "oscar-dump/1");
  EXPECT_NE(dump.err.find("wrote"), std::string::npos) << dump;

  const auto quiet = run(bench.dump_command((bench / "again.h5").string()) + Arguments{"-q"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.out + quiet.err, "") << quiet;

  const auto fit = tool("oscar-fit", {bench.stats(), "-o", bench.rotations(), "--json", "-q"});
  ASSERT_EQ(fit.code, 0) << fit;
  EXPECT_EQ(Json::parse(fit.out).at("schema"), "oscar-rotations/1");
  EXPECT_EQ(fit.err, "");

  const auto clip = tool("oscar-clip", {bench.stats(), "--rotations", bench.rotations(), "--json", "-q"});
  ASSERT_EQ(clip.code, 0) << clip;
  EXPECT_EQ(Json::parse(clip.out).at("schema"), "oscar-clip/1");

  const auto verify = tool("oscar-verify", {bench.stats(), "--rotations", bench.rotations(), "--json", "-"});
  ASSERT_EQ(verify.code, 0) << verify;
  EXPECT_EQ(Json::parse(verify.out).at("schema"), "oscar-verify/1");
}

TEST(Pipeline, TextFromStdinAndSeveralFilesGiveTheSameAsOneFile) {
  const Bench bench;
  ASSERT_EQ(run(bench.dump_command(bench.stats())).code, 0);
  auto command = bench.dump_command((bench / "stdin.h5").string());
  *std::find(command.begin(), command.end(), bench.text()) = "-";
  const auto outcome = run(command, read(bench.text()));
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_EQ(read(bench.stats()), read(bench / "stdin.h5"));
}

TEST(Pipeline, PlanWritesNothing) {
  const Bench bench;
  const auto before = bench.files();
  const auto outcome = run(bench.dump_command(bench.stats()) + Arguments{"--plan"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_NE((outcome.out + outcome.err).find("raw dump"), std::string::npos) << outcome;
  EXPECT_EQ(bench.files(), before);
}

// A raw dump of the same run, fitted, is the rotation of the sums: what serving engines dump can be compared with ours.
TEST(Pipeline, RawDumpFitsLikeTheStatistics) {
  const Bench bench;
  ASSERT_EQ(run(bench.dump_command(bench.stats()) + Arguments{"--save-qkv", (bench / "raw").string()}).code, 0);
  ASSERT_TRUE(fs::exists(bench / "raw/layer_2/q/1.pt"));
  for (const auto& [input, output] : {std::pair{bench.stats(), "a"}, std::pair{(bench / "raw").string(), "b"}}) {
    const auto fit = tool("oscar-fit", {input, "--method", "oscar-proxy", "-o", (bench / output).string()});
    ASSERT_EQ(fit.code, 0) << fit;
  }
  for (const char* name : {"k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt"}) {
    const auto compare = tool("oscar-verify", {"--compare", (bench / "a" / name).string(), (bench / "b" / name).string()});
    EXPECT_EQ(compare.code, 0) << name << "\n" << compare;
  }
}

TEST(Pipeline, CompareSeesADifference) {
  const Bench bench;
  ASSERT_EQ(run(bench.dump_command(bench.stats())).code, 0);
  ASSERT_EQ(tool("oscar-fit", {bench.stats(), "-o", (bench / "a").string()}).code, 0);
  ASSERT_EQ(tool("oscar-fit", {bench.stats(), "--target-k", "ktk", "-o", (bench / "b").string()}).code, 0);
  const auto same = tool("oscar-verify", {"--compare", (bench / "a/k_rotation_qqt_r_h_pbr.pt").string(), (bench / "a/k_rotation_qqt_r_h_pbr.safetensors").string()});
  EXPECT_EQ(same.code, 0) << same;
  const auto other = tool("oscar-verify", {"--compare", (bench / "a/k_rotation_qqt_r_h_pbr.pt").string(), (bench / "b/k_rotation_ktk_r_h_pbr.pt").string()});
  EXPECT_EQ(other.code, 1) << other;
}

TEST(Pipeline, BoundsTurnIntoExitCodeOne) {
  const Bench bench;
  ASSERT_NO_FATAL_FAILURE(run_pipeline(bench));
  const Arguments verify{bench.stats(), "--rotations", bench.rotations(), "--clip", bench.clip()};
  EXPECT_EQ(tool("oscar-verify", verify + Arguments{"--max-kl", "1000"}).code, 0);
  const auto failed = tool("oscar-verify", verify + Arguments{"--max-kl", "1e-9"});
  EXPECT_EQ(failed.code, 1) << failed;
  EXPECT_NE(failed.err.find("layer"), std::string::npos) << "which one? " << failed;
  EXPECT_EQ(tool("oscar-verify", verify + Arguments{"--max-output-error", "1e-9"}).code, 1);
  EXPECT_EQ(tool("oscar-verify", verify + Arguments{"--baseline", (bench / "report.json").string()}).code, 0) << "against itself";
}

}  // namespace
}  // namespace oscar::test
