// Bad input of oscar-fit, oscar-clip and oscar-verify: see refusals.h.
#include <gtest/gtest.h>

#include "tests/apps/refusals.h"

namespace oscar::test {
namespace {

// A finished run that every case below starts from.
const Bench& finished() {
  static const auto bench = [] {
    auto made = std::make_unique<Bench>();
    run_pipeline(*made);
    write(*made / "broken.json", "{\"schema\": \"oscar-clip/1\"");
    write(*made / "other.json", "{\"schema\": \"something\"}");
    fs::create_directory(*made / "empty");
    return made;
  }();
  return *bench;
}
Arguments fit_command() { return {binary("oscar-fit").string(), finished().stats(), "-o", (finished() / "new").string()}; }
Arguments clip_command() {
  return {binary("oscar-clip").string(), finished().stats(), "--rotations", finished().rotations(), "-o", (finished() / "new.json").string()};
}
Arguments verify_command() {
  return {binary("oscar-verify").string(), finished().stats(), "--rotations", finished().rotations(), "--json", (finished() / "new.json").string()};
}
// Paths below the bench are known only when the test runs: "@name" stands for them.
Arguments placed(Arguments arguments) {
  for (auto& argument : arguments) {
    if (argument.starts_with("@")) argument = (finished() / argument.substr(1)).string();
  }
  return arguments;
}

class FitRefusal : public testing::TestWithParam<Refusal> {};
TEST_P(FitRefusal, IsExplained) { expect_refusal(finished(), fit_command() + placed(GetParam().arguments), GetParam()); }
INSTANTIATE_TEST_SUITE_P(Options, FitRefusal,
                         testing::Values(Refusal{"UnknownOption", {"--frobnicate"}, 2, "frobnicate"},
                                         Refusal{"UnknownMethod", {"--method", "magic"}, 2, "oscar"},
                                         Refusal{"UnknownTarget", {"--target-k", "zzz"}, 2, "qqt"},
                                         Refusal{"TargetOfTheOtherSide", {"--target-k", "sst"}, 2, "sst"},
                                         Refusal{"UnknownComposition", {"--composition", "h_h"}, 2, "r_h_pbr"},
                                         Refusal{"Granularity", {"--granularity", "model"}, 2, "layer"},
                                         Refusal{"Format", {"--format", "pickle"}, 2, "pickle"},
                                         Refusal{"BitsInfinite", {"--bits", "inf"}, 2, "inf not in range 0.01"},
                                         Refusal{"Device", {"--device", "gpu", "--method", "awvq"}, 2, "cpu, cuda or cuda:N"},
                                         Refusal{"DeviceBeyondAny", {"--device", "cuda:99", "--method", "awvq"}, 3, "cuda:99"},
                                         Refusal{"DeviceOfNoUse", {"--device", "cuda", "--method", "oscar"}, 2, "trains no codebooks"},
                                         Refusal{"DeviceToConvert", {"--device", "cpu", "--convert", "@rotations"}, 2, "--device"},
                                         Refusal{"LayersWithStatistics", {"--layers", "3"}, 2, "--layers"},
                                         Refusal{"HadamardWithComposition", {"--method", "hadamard", "--composition", "plain"}, 2, "--composition"},
                                         Refusal{"TargetTwice", {"--method", "oscar:target=qqt/oscar", "--target-k", "ktk"}, 2, "option target is there twice"},
                                         Refusal{"EmptyMethod", {"--method", ""}, 2, "--method: expected a value, found an empty one"},
                                         Refusal{"EmptyAbsorb", {"--absorb-v", ""}, 2, "--absorb-v: expected a value, found an empty one"},
                                         Refusal{"GroupsThatDoNotDivide", {"--method", "oscar:groups=3"}, 2, "layer 0, k (qqt): codec sglang-prefill: 3 groups do not divide the head dim 32"},
                                         Refusal{"CodecOfAnotherHeadDim", {"--method", "oscar:codec=llamacpp-q2_0"}, 2, "layer 0, k (qqt): codec llamacpp-q2_0"},
                                         Refusal{"MissingShard", {"/nowhere/b.h5"}, 2, "/nowhere/b.h5"},
                                         Refusal{"NotHdf5", {"@text.txt"}, 3, "text.txt"},
                                         Refusal{"SameFileTwice", {"@stats.h5"}, 2, "stats.h5"}),
                         refusal_name);

class ClipRefusal : public testing::TestWithParam<Refusal> {};
TEST_P(ClipRefusal, IsExplained) { expect_refusal(finished(), clip_command() + placed(GetParam().arguments), GetParam()); }
INSTANTIATE_TEST_SUITE_P(Options, ClipRefusal,
                         testing::Values(Refusal{"UnknownOption", {"--frobnicate"}, 2, "frobnicate"},
                                         Refusal{"Positions", {"--positions", "100"}, 2, "100"},
                                         Refusal{"PositionsNotANumber", {"--positions", "x:"}, 2, "x"},
                                         Refusal{"PositionsBeyondProbes", {"--positions", "99999:"}, 2, "99999"},
                                         Refusal{"ProbesMoreThanStored", {"--probes", "9"}, 2, "9"},
                                         Refusal{"ProbeNotStored", {"--probes", "0,9"}, 2, "9"},
                                         Refusal{"RatioAboveOne", {"--ratios", "0.9,1.5"}, 2, "1.5"},
                                         Refusal{"RatioNegative", {"--ratios", "-0.5"}, 2, "-0.5"},
                                         Refusal{"NoQueries", {"--queries", "0"}, 2, "0"},
                                         Refusal{"SeedNegative", {"--seed", "-1"}, 2, "--seed"},
                                         Refusal{"UnknownCodec", {"--codec", "int1"}, 2, "sglang-prefill"},
                                         Refusal{"WindowsBeyondAnyModel", {"--sink", "9223372036854775807"}, 2, "windows sink"},
                                         Refusal{"GroupsThatDoNotDivide", {"--groups", "3"}, 2, "3"}),
                         refusal_name);

class VerifyRefusal : public testing::TestWithParam<Refusal> {};
TEST_P(VerifyRefusal, IsExplained) { expect_refusal(finished(), verify_command() + placed(GetParam().arguments), GetParam()); }
INSTANTIATE_TEST_SUITE_P(Options, VerifyRefusal,
                         testing::Values(Refusal{"UnknownOption", {"--frobnicate"}, 2, "frobnicate"},
                                         Refusal{"Positions", {"--positions", "late"}, 2, "late"},
                                         Refusal{"ProbesMoreThanStored", {"--probes", "9"}, 2, "9"},
                                         Refusal{"LayerNotThere", {"--layers", "77"}, 2, "77"},
                                         Refusal{"UnknownCodec", {"--codec", "int1"}, 2, "sglang-prefill"},
                                         Refusal{"NoClipFile", {"--clip", "/nowhere/clip.json"}, 2, "/nowhere/clip.json"},
                                         Refusal{"ClipNotJson", {"--clip", "@broken.json"}, 3, "broken.json"},
                                         Refusal{"ClipOfAnotherSchema", {"--clip", "@other.json"}, 3, "oscar-clip/1"},
                                         Refusal{"ClipRatio", {"--clip", "1.01,0.9"}, 2, "--clip 1.01,0.9: expected two ratios"},
                                         Refusal{"ClipRatioOfV", {"--clip", "0.9,1.01"}, 2, "--clip 0.9,1.01: expected two ratios"},
                                         Refusal{"ClipRatioNegative", {"--clip=-0.01,0.9"}, 2, "--clip -0.01,0.9: expected two ratios"},
                                         Refusal{"ClipRatioOfVNegative", {"--clip=0.9,-0.01"}, 2, "--clip 0.9,-0.01: expected two ratios"},
                                         Refusal{"RotationsNotThere", {"--rotations", "/nowhere/r"}, 2, "/nowhere/r"},
                                         Refusal{"RotationsEmpty", {"--rotations", "@empty"}, 2, "empty"},
                                         Refusal{"ThreeRotationFiles", {"--rotations", "a,b,c"}, 2, "a,b,c"},
                                         Refusal{"BoundNotANumber", {"--max-kl", "small"}, 2, "small"},
                                         Refusal{"ToleranceNegative", {"--baseline-tolerance", "-1"}, 2, "--baseline-tolerance"},
                                         Refusal{"ClipOneRatio", {"--clip", "0.9"}, 2, "--clip 0.9: expected two ratios, RK,RV"},
                                         Refusal{"ClipThreeRatios", {"--clip", "0.9,0.9,0.9"}, 2, "expected two ratios, RK,RV"},
                                         Refusal{"ClipRatioNotANumber", {"--clip", "nan,0.9"}, 2, "nan,0.9"},
                                         Refusal{"BoundNan", {"--max-kl", "nan"}, 2, "found nan"},
                                         Refusal{"ToleranceNan", {"--baseline-tolerance", "nan"}, 2, "found nan"},
                                         Refusal{"ToleranceWithoutBaseline", {"--baseline-tolerance", "0.1"}, 2, "--baseline"},
                                         Refusal{"BaselineNotThere", {"--baseline", "/nowhere/r.json"}, 2, "/nowhere/r.json"},
                                         Refusal{"ProbeBeyondInt", {"--probes", "4294967296,"}, 2, "--probes"},
                                         Refusal{"ProbeNotStored", {"--probes", "9,"}, 2, "--probes: 9"},
                                         Refusal{"WindowsWithoutSweep", {"--sweep-windows", "4/8"}, 2, "--sweep windows"},
                                         Refusal{"PromptWithoutGenerate", {"--prompt", "5"}, 2, "--generate"},
                                         Refusal{"RowWithoutName", {"--methods", "=naive"}, 2, "empty name"},
                                         Refusal{"ClipByLayerWithoutClip", {"--clip-by-layer"}, 2, "clip.json"},
                                         Refusal{"ClipByLayerOfTwoRatios", {"--clip-by-layer", "--clip", "0.9,0.9"}, 2, "clip.json"},
                                         Refusal{"TwoOutputsInOneFile", {"--csv", "@new.json"}, 2, "--json and --csv"},
                                         Refusal{"OutputOverTheStatistics", {"--csv", "@stats.h5"}, 2, "is an input of this run"},
                                         Refusal{"OutputOverTheClip", {"--clip", "@clip.json", "--csv", "@clip.json"}, 2, "is an input of this run"},
                                         Refusal{"OutputIsADirectory", {"--report", "@empty"}, 2, "found a directory"},
                                         Refusal{"OutputNowhere", {"--report", "/nowhere/r.html"}, 2, "/nowhere"},
                                         Refusal{"OptionOfAMethodTwice", {"--methods", "oscar:clip=.9:clip=.8"}, 2, "option clip is there twice, 'clip=.9' and 'clip=.8'"},
                                         Refusal{"SweepOverWhatIsSet", {"--methods", "oscar:clip=.9", "--sweep", "clip"}, 2, "option clip is there twice"},
                                         Refusal{"SeedOfAMethodNegative", {"--methods", "turboquant:seed=-1"}, 2, "seed: expected a number from 0"},
                                         Refusal{"EmptyOutput", {"--csv", ""}, 2, "--csv: expected a value, found an empty one"},
                                         Refusal{"EmptyPage", {"--report", ""}, 2, "--report: expected a value, found an empty one"},
                                         Refusal{"EmptyBaseline", {"--baseline", ""}, 2, "--baseline: expected a value, found an empty one"},
                                         Refusal{"CompareAndStatistics", {"--compare", "a.pt", "b.pt"}, 2, "--compare"}),
                         refusal_name);

TEST(Refusals, WhatIsRequired) {
  const Bench& bench = finished();
  expect_refusal(bench, {binary("oscar-fit").string(), bench.stats()}, {"", {}, 2, "-o"});
  expect_refusal(bench, {binary("oscar-fit").string(), "-o", (bench / "new").string()}, {"", {}, 2, "input"});
  expect_refusal(bench, {binary("oscar-fit").string(), "--method", "hadamard", "--layers", "4096", "--head-dim", "4096", "-o", (bench / "new").string()},
                 {"", {}, 2, "no model is that large"});
  expect_refusal(bench, {binary("oscar-clip").string(), bench.stats()}, {"", {}, 2, "--rotations"});
  expect_refusal(bench, {binary("oscar-clip").string(), "--rotations", bench.rotations()}, {"", {}, 2, "statistics"});
  const Arguments clip{binary("oscar-clip").string(), bench.stats(), "--rotations", bench.rotations(), "-o"};
  expect_refusal(bench, clip + Arguments{bench.stats()}, {"", {}, 2, "is an input of this run"});
  expect_refusal(bench, clip + Arguments{(bench / "empty").string()}, {"", {}, 2, "found a directory"});
  for (const char* name : {"rotations/k_rotation_qqt_r_h_pbr.pt", "rotations/manifest.json", "rotations/new.safetensors"})
    expect_refusal(bench, clip + Arguments{(bench / name).string()}, {name, {}, 2, "is an input of this run"});
  expect_refusal(bench, {binary("oscar-verify").string()}, {"", {}, 2, "stats.h5"});
  expect_refusal(bench, {binary("oscar-verify").string(), "--compare", "one.pt"}, {"", {}, 2, "--compare"});
}

TEST(Refusals, AnOutputWithoutAName) {
  const Bench& bench = finished();
  const auto refused = [&](const Arguments& command) {
    expect_refusal(bench, command + Arguments{"-o", ""}, {command[0], {}, 2, "--output: expected a value, found an empty one"});
  };
  refused({binary("oscar-dump").string(), "--model", bench.model(), "--text", bench.text()});
  refused({binary("oscar-fit").string(), bench.stats()});
  refused({binary("oscar-clip").string(), bench.stats(), "--rotations", bench.rotations()});
  expect_refusal(bench, {binary("oscar-verify").string(), bench.stats(), "--json", ""},
                 {"json", {}, 2, "--json: expected a value, found an empty one"});
}

// Options of the cache are of the rows that are scalar; where there are none, they would change nothing.
TEST(Refusals, OptionsThatNoRowWouldUse) {
  const Bench& bench = finished();
  const Arguments methods{binary("oscar-verify").string(), bench.stats(), "--methods", "naive", "--no-baselines"};
  const auto codes = (bench / "codes").string();
  ASSERT_EQ(tool("oscar-fit", {bench.stats(), "--method", "kivi", "-o", codes}).code, 0);
  const Arguments fitted{binary("oscar-verify").string(), bench.stats(), "--rotations", codes, "--no-baselines"};
  for (const Arguments& options : {Arguments{"--codec", "bf16"}, {"--groups", "4"}, {"--clip", "0.9,0.9"}}) {
    for (const auto& command : {methods, fitted}) {
      expect_refusal(bench, command + options, {options[0], {}, 2, options[0] + ": no row would use it"});
    }
    const Arguments used{binary("oscar-verify").string(), bench.stats(), "-q", "--methods", "naive"};
    EXPECT_EQ(run(with(used, {"--methods", "kivi"}) + options).code, 0) << "the baselines use it";
    EXPECT_EQ(run(used + Arguments{"--no-baselines", "--rotations", bench.rotations()} + options).code, 0) << "the rotations use it";
  }
  // What was searched for rotations is of no baseline.
  expect_refusal(bench, fitted + Arguments{"--clip", bench.clip()}, {"", {}, 2, "--clip: no row would use it"});
  const Arguments compare{binary("oscar-verify").string(), "--compare", bench.rotations(), bench.rotations()};
  EXPECT_EQ(run(compare + Arguments{"--json", "-", "-q"}).code, 0);
  for (const Arguments& options : {Arguments{"--csv", (bench / "c.csv").string()}, {"--max-kl", "1"}, {"--layers", "0"}})
    expect_refusal(bench, compare + options, {options[0], {}, 2, options[0]});
  expect_refusal(bench, {binary("oscar-verify").string(), bench.stats(), "--no-baselines"}, {"", {}, 2, "leaves no row to measure"});
}

TEST(Refusals, ClipRatiosReachFromOffToOne) {
  const Bench& bench = finished();
  EXPECT_EQ(tool("oscar-verify", {bench.stats(), "--clip", "0,1", "-q"}).code, 0);
}

TEST(Refusals, RestartOfARunThatKeepsNothing) {
  const Bench& bench = finished();
  expect_refusal(bench, {binary("oscar-verify").string(), bench.stats(), "--restart"}, {"", {}, 2, "--restart: rows are kept beside --json"});
}

TEST(Refusals, StatisticsThatAreNone) {
  const Bench& bench = finished();
  for (const char* name : {"oscar-fit", "oscar-clip", "oscar-verify"}) {
    const Arguments rest = name == std::string("oscar-fit") ? Arguments{"-o", (bench / "new").string()} : Arguments{"--rotations", bench.rotations()};
    expect_refusal(bench, Arguments{binary(name).string(), "/nowhere/stats.h5"} + rest, {name, {}, 2, "/nowhere/stats.h5"});
    expect_refusal(bench, Arguments{binary(name).string(), bench.text()} + rest, {name, {}, 3, "text.txt"});
  }
}

TEST(Refusals, TruncatedStatistics) {
  const Bench bench;
  ASSERT_EQ(run(bench.dump_command(bench.stats())).code, 0);
  const auto whole = read(bench.stats());
  for (const size_t size : {size_t{0}, size_t{100}, size_t{5000}, whole.size() / 2, whole.size() - 1}) {
    write(bench.stats(), whole.substr(0, size));
    expect_refusal(bench, {binary("oscar-fit").string(), bench.stats(), "-o", (bench / "new").string()}, {"", {}, 3, "stats.h5"});
  }
}

TEST(Refusals, TooFewTokensForAFit) {
  const Bench bench;
  ASSERT_EQ(run({binary("oscar-dump").string(), "--model", bench.model(), "--text", bench.text(), "--seq-len", "64", "--tokens", "100", "-o", bench.stats()}).code, 0);
  const Arguments fit{binary("oscar-fit").string(), bench.stats(), "-o", (bench / "new").string()};
  expect_refusal(bench, fit, {"", {}, 1, "tokens"});
  EXPECT_EQ(run(fit + Arguments{"--allow-undersampled"}).code, 0);
}

TEST(Refusals, NoProbes) {
  const Bench bench;
  ASSERT_EQ(run(with(bench.dump_command(bench.stats()), {"--probes", "0"})).code, 0);
  ASSERT_EQ(tool("oscar-fit", {bench.stats(), "-o", bench.rotations()}).code, 0);
  for (const char* name : {"oscar-clip", "oscar-verify"}) {
    expect_refusal(bench, {binary(name).string(), bench.stats(), "--rotations", bench.rotations()}, {name, {}, 2, "probe"});
  }
}

TEST(Refusals, RotationsOfAnotherModel) {
  const Bench bench, other({.layers = 2}), wide({.head_dim = 64});
  for (const Bench* b : {&bench, &other, &wide}) ASSERT_EQ(run(b->dump_command(b->stats())).code, 0);
  for (const Bench* b : {&other, &wide}) ASSERT_EQ(tool("oscar-fit", {b->stats(), "-o", b->rotations()}).code, 0);
  expect_refusal(bench, {binary("oscar-verify").string(), bench.stats(), "--rotations", other.rotations()}, {"a layer less", {}, 2, "2"});
  expect_refusal(bench, {binary("oscar-verify").string(), bench.stats(), "--rotations", wide.rotations()}, {"other head dim", {}, 2, "64"});
  expect_refusal(bench, {binary("oscar-fit").string(), bench.stats(), wide.stats(), "-o", (bench / "new").string()}, {"merge", {}, 2, "model_digest"});
}

TEST(Refusals, MergeOfOtherWindows) {
  const Bench bench;
  ASSERT_EQ(run(bench.dump_command(bench.stats())).code, 0);
  write(bench / "text.txt", toy_text(6000, 2));
  ASSERT_EQ(run(with(bench.dump_command((bench / "b.h5").string()), {"--sink", "16"})).code, 0);
  expect_refusal(bench, {binary("oscar-fit").string(), bench.stats(), (bench / "b.h5").string(), "-o", (bench / "new").string()}, {"", {}, 2, "window_sink"});
}

TEST(Refusals, KeysComparedWithValues) {
  const Bench& bench = finished();
  expect_refusal(bench, {binary("oscar-verify").string(), "--compare", (bench / "rotations/k_rotation_qqt_r_h_pbr.pt").string(), (bench / "rotations/v_rotation_sst_r_h_pbr.pt").string()},
                 {"", {}, 2, "compare"});
}

TEST(Refusals, HelpAndVersionSucceedOnStdout) {
  for (const char* name : {"oscar-dump", "oscar-fit", "oscar-clip", "oscar-verify"}) {
    const auto help = tool(name, {"--help"});
    EXPECT_EQ(help.code, 0) << help;
    EXPECT_EQ(help.err, "") << help;
    const auto examples = help.out.find("Examples:");
    ASSERT_NE(examples, std::string::npos) << help;
    const auto first = help.out.find(std::string("  ") + name + " ", examples);
    ASSERT_NE(first, std::string::npos) << help;
    EXPECT_NE(help.out.find(std::string("  ") + name + " ", first + 1), std::string::npos) << "two examples: " << help;
    const auto version = tool(name, {"--version"});
    EXPECT_EQ(version.code, 0) << version;
    EXPECT_EQ(version.out.rfind("oscar-calib ", 0), 0u) << version;
  }
}

}  // namespace
}  // namespace oscar::test
