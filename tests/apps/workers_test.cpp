// Several processes of oscar-dump are one run: started by hand, by a launcher's variables, and by mpirun.
#include <gtest/gtest.h>

#include "tests/apps/refusals.h"

namespace oscar::test {
namespace {

const Arguments kExact{"--deterministic", "--rows", "100", "--score-queries", "1/2"};

Arguments shards_of(const Bench& bench, int count) {
  Arguments paths;
  for (int i = 0; i < count; ++i)
    paths.push_back(
        (bench / ("stats.shard-" + std::to_string(i) + "-of-" + std::to_string(count) + ".h5")).string());
  return paths;
}
void done(const Outcome& outcome) {
  ASSERT_EQ(outcome.code, 0) << outcome;
}

// Whole runs and shards give the same joined file, rotations, clip ratios and report.
void expect_one_run(const Bench& bench, const Arguments& shards) {
  const auto whole = (bench / "whole.h5").string(), joined = (bench / "joined.h5").string();
  done(run(bench.dump_command(whole) + kExact));
  done(tool("oscar-fit", Arguments{"--convert"} + shards + Arguments{"-o", joined}));
  EXPECT_TRUE(read(joined) == read(whole));
  const auto steps = [&](const Arguments& statistics, const std::string& out) {
    done(tool("oscar-fit", statistics + Arguments{"--target-v", "sst-proxy", "-o", (bench / out).string()}));
    const auto clip =
        tool("oscar-clip", statistics + Arguments{"--rotations", (bench / out).string(), "--json"});
    const auto verify =
        tool("oscar-verify",
             statistics + Arguments{"--rotations", "R=" + (bench / out).string(), "--methods", "oscar"});
    done(clip), done(verify);
    return clip.out + verify.out + read(bench / out / "manifest.json");
  };
  EXPECT_EQ(steps({whole}, "of-whole"), steps(shards, "of-shards"));
}

TEST(Workers, TwoByHandAreOneRun) {
  const Bench bench;
  for (const char* shard : {"1/2", "0/2"}) {
    const auto outcome = run(bench.dump_command(bench.stats()) + kExact + Arguments{"--shard", shard});
    done(outcome);
    EXPECT_NE(outcome.err.find(std::string("worker ") + shard[0] + " of 2 (from --shard"), std::string::npos)
        << outcome;
    EXPECT_NE(outcome.err.find("when all workers are done, oscar-fit "), std::string::npos) << outcome;
  }
  EXPECT_FALSE(fs::exists(bench.stats()));
  expect_one_run(bench, shards_of(bench, 2));
}

TEST(Workers, VariablesOfLaunchersAreReadWhenAskedFor) {
  const std::vector<std::vector<std::string>> launchers{
      {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=3", "RANK=0", "WORLD_SIZE=1"},
      {"PMI_RANK=1", "PMI_SIZE=3"},
      {"SLURM_PROCID=1", "SLURM_NTASKS=3"},
      {"RANK=1", "WORLD_SIZE=3"},
      {"JOB_COMPLETION_INDEX=1", "OSCAR_SHARDS=3"}};
  for (const auto& environment : launchers) {
    const Bench bench;
    const auto outcome =
        run(bench.dump_command(bench.stats()) + Arguments{"--shard", "auto"}, "", environment);
    done(outcome);
    EXPECT_TRUE(fs::exists(shards_of(bench, 3)[1])) << environment[0];
    EXPECT_NE(outcome.err.find("worker 1 of 3 (from "), std::string::npos) << outcome;
    EXPECT_NE(outcome.err.find(environment[0] + " " + environment[1]), std::string::npos) << outcome;
  }
  const Bench bench;
  done(run(bench.dump_command(bench.stats()), "",
           {"RANK=1", "WORLD_SIZE=3", "SLURM_PROCID=1", "SLURM_NTASKS=3"}));
  EXPECT_TRUE(fs::exists(bench.stats())) << "a stray RANK took a part of the run away";
  done(run(bench.dump_command(bench.stats()) + Arguments{"--shard", "torchrun"}, "",
           {"RANK=0", "WORLD_SIZE=2", "SLURM_PROCID=1", "SLURM_NTASKS=3"}));
  EXPECT_TRUE(fs::exists(shards_of(bench, 2)[0]));
  done(run(bench.dump_command(bench.stats()) + Arguments{"--shard", "kubernetes", "--shards", "4"}, "",
           {"JOB_COMPLETION_INDEX=3"}));
  EXPECT_TRUE(fs::exists(shards_of(bench, 4)[3]));
}

TEST(Workers, MpirunStartsTwo) {
  const Arguments mpirun{"mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2"};
  if (run({"sh", "-c", "command -v mpirun"}).code != 0)
    GTEST_SKIP() << "needs mpirun: apt-get install openmpi-bin";
  if (const auto works = run(mpirun + Arguments{"true"}); works.code != 0)
    GTEST_SKIP() << "mpirun starts nothing here: " << works;
  const Bench bench;
  done(run(mpirun + bench.dump_command(bench.stats()) + kExact + Arguments{"--shard", "auto"}));
  expect_one_run(bench, shards_of(bench, 2));
}

TEST(Workers, FilesThatDoNotGoTogetherAreRefused) {
  const Bench bench;
  for (const char* shard : {"0/2", "1/2"})
    done(run(bench.dump_command(bench.stats()) + Arguments{"--shard", shard}));
  const Arguments shards = shards_of(bench, 2);
  done(run(bench.dump_command((bench / "other.h5").string()) + Arguments{"--shard", "1/2", "--seed", "5"}));
  done(run(bench.dump_command((bench / "whole.h5").string())));
  const auto other = (bench / "other.shard-1-of-2.h5").string(), whole = (bench / "whole.h5").string(),
             out = (bench / "out").string();
  const std::vector<std::pair<Arguments, std::string>> wrong{
      {{shards[0]}, "shard 1/2 is missing: 1 of 2 files were given: " + shards[0]},
      {{shards[1]}, "shard 0/2 is missing"},
      {{shards[0], shards[0]}, shards[0] + " and " + shards[0] + " are the same shard"},
      {{shards[0], other}, shards[0] + " and " + other + " are not of one run: command is"},
      {{whole, shards[1]}, "shard is '0/1' in the first, '1/2' in the second"}};
  for (const auto& [files, says] : wrong) {
    const std::vector<Arguments> commands{
        Arguments{binary("oscar-fit").string()} + files + Arguments{"-o", out},
        Arguments{binary("oscar-fit").string(), "--convert"} + files + Arguments{"-o", out + ".h5"},
        Arguments{binary("oscar-clip").string()} + files + Arguments{"--rotations", out},
        Arguments{binary("oscar-verify").string()} + files + Arguments{"--methods", "oscar"}};
    for (const auto& command : commands) expect_refusal(bench, command, {"merge", {}, 2, says});
  }
}

class WorkerRefusals : public testing::TestWithParam<Refusal> {};
TEST_P(WorkerRefusals, SayWhatIsWrong) {
  const Bench bench;
  expect_refusal(bench, bench.dump_command(bench.stats()) + GetParam().arguments, GetParam());
}
INSTANTIATE_TEST_SUITE_P(
    Workers, WorkerRefusals,
    testing::Values(
        Refusal{"OutOfRange",
                {"--shard", "2/2"},
                2,
                "--shard: expected i/n with 0 <= i < n, counted from 0, found 2/2"},
        Refusal{"NoNumber", {"--shard", "a/2"}, 2, "--shard: expected a number, found 'a'"},
        Refusal{"NoCount", {"--shard", "1/"}, 2, "--shard: expected a number, found ''"},
        Refusal{
            "UnknownLauncher", {"--shard", "pbs"}, 2, "expected i/n, auto, or one of openmpi, pmi, slurm"},
        Refusal{"NotStartedByIt", {"--shard", "openmpi"}, 2, "OMPI_COMM_WORLD_RANK is not set"},
        Refusal{"NoLauncher",
                {"--shard", "auto"},
                2,
                "JOB_COMPLETION_INDEX (kubernetes) is set: start it with a launcher"},
        Refusal{"CountTwice", {"--shard", "0/2", "--shards", "2"}, 2, "says of how many already"},
        Refusal{"CountAlone", {"--shards", "2"}, 2, "--shards: says of how many; which one is missing"},
        Refusal{"MoreThanSequences", {"--shard", "0/5000"}, 2, "5000 workers for"},
        Refusal{"Perplexity",
                {"--shard", "0/2", "--perplexity"},
                2,
                "--perplexity is of all sequences in one process"}),
    refusal_name);

}  // namespace
}  // namespace oscar::test
