// Runs that are killed, interrupted or out of disk: nothing half-written, and --resume gives the bytes of a run that was left alone.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "tests/apps/interrupt.h"
#include "tests/apps/refusals.h"

namespace oscar::test {
namespace {

// Layers enough, and each slow enough, that the signal meets a run in its middle.
struct LongRun {
  Bench bench{{.layers = 12}, 20000};
  std::string output = bench.stats();
  fs::path part = output + ".partial/layer_0001.h5";
  Arguments command = with(bench.dump_command(output), {"--seq-len", "512"});
  bool in_the_middle() const { return fs::exists(part); }
};

std::vector<std::string> outside_partial(const Bench& bench) {
  std::vector<std::string> names;
  for (const auto& name : bench.files()) {
    if (name.find(".partial/") == std::string::npos) names.push_back(name);
  }
  return names;
}

class Interrupted : public testing::TestWithParam<int> {};

TEST_P(Interrupted, ResumeGivesTheBytesOfAnUninterruptedRun) {
  const LongRun r;
  const auto before = r.bench.files();
  auto alone = r.command;
  *std::find(alone.begin(), alone.end(), r.output) = (r.bench / "alone.h5").string();
  ASSERT_EQ(run(alone).code, 0);
  const auto expected = read(r.bench / "alone.h5");
  fs::remove(r.bench / "alone.h5");

  const int code = run_until(r.command, [&] { return r.in_the_middle(); }, GetParam());
  ASSERT_EQ(code, GetParam() == SIGKILL ? 128 + SIGKILL : 130) << "the run was over before the signal came";
  EXPECT_FALSE(fs::exists(r.output));
  EXPECT_EQ(outside_partial(r.bench), before);
  ASSERT_FALSE(fs::exists(r.output + ".partial/layer_0011.h5"));

  const auto again = run(r.command);
  EXPECT_EQ(again.code, 2) << again;
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again;
  const auto other = run(r.command + Arguments{"--resume", "--seed", "9"});
  EXPECT_EQ(other.code, 2) << other;
  EXPECT_NE(other.err.find("seed"), std::string::npos) << other;

  const auto resumed = run(r.command + Arguments{"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed;
  EXPECT_TRUE(read(r.output) == expected) << "the bytes differ";
  EXPECT_FALSE(fs::exists(r.output + ".partial"));
}
INSTANTIATE_TEST_SUITE_P(By, Interrupted, testing::Values(SIGKILL, SIGINT, SIGTERM),
                         [](const auto& info) { return info.param == SIGKILL ? "Kill" : info.param == SIGINT ? "Int" : "Term"; });

TEST(Interruption, RestartThrowsTheOldRunAway) {
  const LongRun r;
  run_until(r.command, [&] { return r.in_the_middle(); }, SIGKILL);
  ASSERT_TRUE(r.in_the_middle());
  const auto restarted = run(r.command + Arguments{"--restart", "--seed", "9"});
  ASSERT_EQ(restarted.code, 0) << restarted;
  EXPECT_FALSE(fs::exists(r.output + ".partial"));
}

TEST(Interruption, ADamagedPartIsNotTrusted) {
  const LongRun r;
  run_until(r.command, [&] { return r.in_the_middle(); }, SIGKILL);
  ASSERT_TRUE(r.in_the_middle());
  const auto whole = read(r.part);
  write(r.part, whole.substr(0, whole.size() / 2));
  const auto resumed = run(r.command + Arguments{"--resume"});
  EXPECT_NE(resumed.code, 0) << "half a layer is no layer";
  EXPECT_FALSE(fs::exists(r.output));
}

// A file system of a given size, for root only.
class SmallDisk {
 public:
  SmallDisk(const fs::path& path, const char* size) : path_(path) {
    fs::create_directory(path);
    mounted_ = mount("tmpfs", path.c_str(), "tmpfs", 0, (std::string("size=") + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
  bool mounted_ = false;
};
#define OSCAR_NEED_DISK(disk) \
  if (!disk.mounted()) GTEST_SKIP() << "needs root and the right to mount a small tmpfs"

TEST(FullDisk, DumpSaysSoAndResumesWhenThereIsRoom) {
  const Bench bench;
  const SmallDisk disk(bench / "disk", "256k");
  OSCAR_NEED_DISK(disk);
  const auto outcome = run(bench.dump_command(disk / "stats.h5"));
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome;
  EXPECT_FALSE(fs::exists(disk / "stats.h5"));
  ASSERT_EQ(mount("tmpfs", (bench / "disk").c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0);
  const auto resumed = run(bench.dump_command(disk / "stats.h5") + Arguments{"--resume"});
  ASSERT_EQ(resumed.code, 0) << resumed;
  ASSERT_EQ(run(bench.dump_command(bench.stats())).code, 0);
  EXPECT_TRUE(read(disk / "stats.h5") == read(bench.stats()));
}

TEST(FullDisk, OtherToolsLeaveNothing) {
  const Bench bench;
  ASSERT_NO_FATAL_FAILURE(run_pipeline(bench));
  const SmallDisk disk(bench / "disk", "4k");
  OSCAR_NEED_DISK(disk);
  write(disk / "filler", std::string(4096, 'x'));
  const auto before = bench.files();
  const std::vector<Arguments> commands{
      {binary("oscar-fit").string(), bench.stats(), "-o", disk / "rotations"},
      {binary("oscar-clip").string(), bench.stats(), "--rotations", bench.rotations(), "-q", "-o", disk / "clip.json"},
      {binary("oscar-verify").string(), bench.stats(), "--rotations", bench.rotations(), "--json", disk / "report.json"}};
  for (const auto& command : commands) {
    const auto outcome = run(command);
    EXPECT_EQ(outcome.code, 3) << outcome;
    EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome;
    EXPECT_EQ(bench.files(), before);
  }
}

TEST(FullDisk, StandardOutputThatTakesNothing) {
  const Bench bench;
  ASSERT_NO_FATAL_FAILURE(run_pipeline(bench));
  for (const std::string command : {"oscar-fit --list-methods", "oscar-fit stats.h5 -o again --json", "oscar-clip stats.h5 --rotations rotations",
                                    "oscar-verify stats.h5 --rotations rotations"}) {
    const auto outcome = run({"sh", "-c", "cd \"$1\" && exec \"$2\"/" + command + " >/dev/full", "sh", bench.path().string(), binary("").string()});
    EXPECT_EQ(outcome.code, 3) << command << "\n" << outcome;
    EXPECT_NE(outcome.err.find("standard output"), std::string::npos) << command << "\n" << outcome;
  }
}

}  // namespace
}  // namespace oscar::test
