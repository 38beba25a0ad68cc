// A bound on the memory of oscar-dump: what it announces, that it keeps to it, and what it leaves behind.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "tests/apps/interrupt.h"
#include "tests/apps/refusals.h"

namespace oscar::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// About 32 MiB a layer in float32, half of that in the file.
ToyOptions wide() {
  ToyOptions options;
  options.layers = 24;
  options.hidden = 1024;
  options.intermediate = 1792;
  options.q_heads = 16;
  options.kv_heads = 4;
  options.head_dim = 64;
  options.weights = 1;  // F16
  return options;
}

TEST(Memory, AModelLargerThanTheBoundKeepsToIt) {
  const Bench bench(wide(), 2500);
  constexpr int64_t kLimit = 350 * kMiB;
  ASSERT_GT(static_cast<int64_t>(fs::file_size(bench.model())), kLimit);
  const auto command =
      with(bench.dump_command(bench.stats()), {"--probes", "1", "--memory", "350M", "--json"});
  const auto outcome = run(command);
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_NE(outcome.err.find("expected peak "), std::string::npos) << outcome;
  EXPECT_NE(outcome.err.find(" of 350 MiB"), std::string::npos) << outcome;
  const auto memory = nlohmann::json::parse(outcome.out).at("memory");
  EXPECT_EQ(memory.at("limit").get<int64_t>(), kLimit);
  EXPECT_LE(memory.at("peak").get<int64_t>(), kLimit);
  EXPECT_LE(memory.at("measured").get<double>(), 1.1 * memory.at("peak").get<double>());
  EXPECT_FALSE(fs::exists(bench.stats() + ".partial"));
}

TEST(Memory, TheBoundIsPrintedKeptAndChangesNothingElse) {
  const Bench bench;
  const Arguments exact{"--deterministic"};
  ASSERT_EQ(run(bench.dump_command(bench.stats()) + exact).code, 0);
  const auto bounded = (bench / "bounded.h5").string();
  const auto outcome = run(bench.dump_command(bounded) + exact + Arguments{"--memory", "8G"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_NE(outcome.err.find("hidden states, k and v in memory; next layer read while one computes"),
            std::string::npos)
      << outcome;
  for (const auto& statistics : {bench.stats(), bounded})
    ASSERT_EQ(tool("oscar-fit", {statistics, "-o", statistics + ".fit"}).code, 0);
  EXPECT_EQ(read(fs::path(bench.stats() + ".fit") / "manifest.json"),
            read(fs::path(bounded + ".fit") / "manifest.json"));
}

// The file that hidden states spill into has no name.
TEST(Memory, AKilledRunLeavesOnlyItsParts) {
  const Bench bench({}, 400000);
  const auto plan = run(bench.dump_command(bench.stats()) + Arguments{"--memory", "1M"});
  const auto least = plan.err.find("need at least ");
  ASSERT_NE(least, std::string::npos) << plan;
  const std::string size = std::to_string(std::stoi(plan.err.substr(least + 14))) + "M";
  const fs::path partial = bench.stats() + ".partial";
  const auto command = bench.dump_command(bench.stats()) + Arguments{"--memory", size};
  for (const int signal : {SIGTERM, SIGKILL}) {
    const int code = run_until(
        command, [&] { return fs::exists(partial / "layer_0000.h5"); }, signal);
    if (code == 0) GTEST_SKIP() << "the run was over before it could be killed";
    for (const auto& entry : fs::directory_iterator(partial)) {
      const auto name = entry.path().filename().string();
      const bool known = name == "run.json" || name.starts_with("layer_") || name.starts_with("hidden_");
      EXPECT_TRUE(known || signal == SIGKILL) << name << " was left by signal " << signal;
      EXPECT_EQ(name.find("spill"), std::string::npos) << name;
    }
    fs::remove_all(partial);
  }
}

class MemoryRefusals : public testing::TestWithParam<Refusal> {};
TEST_P(MemoryRefusals, SayWhatWouldDo) {
  const Bench bench;
  expect_refusal(bench, bench.dump_command(bench.stats()) + GetParam().arguments + Arguments{"-q"},
                 GetParam());
}
INSTANTIATE_TEST_SUITE_P(
    Memory, MemoryRefusals,
    testing::Values(Refusal{"TooLittle",
                            {"--memory", "20M"},
                            2,
                            "--memory 20 MiB: this model and these sequences need at least "},
                    Refusal{"Words", {"--memory", "much"}, 2, "--memory"},
                    Refusal{"Negative", {"--memory", "-1"}, 2, "--memory"}),
    refusal_name);

}  // namespace
}  // namespace oscar::test
