// The same inputs give the same bytes, whatever the number of threads; and the example is the same as the four programs.
#include <gtest/gtest.h>

#include <map>

#include "tests/apps/tools.h"

namespace oscar::test {
namespace {

std::map<std::string, std::string> artifacts(const Bench& bench, const std::string& threads) {
  const Arguments on{"--threads", threads};
  const auto done = [](const Outcome& outcome) { EXPECT_EQ(outcome.code, 0) << outcome; };
  std::map<std::string, std::string> contents;
  for (const auto& name : {bench.stats(), bench.rotations(), bench.clip()}) fs::remove_all(name);
  done(run(with(bench.dump_command(bench.stats()) + Arguments{"--deterministic", "--score-queries", "1/2", "--rows", "100"}, on)));
  done(tool("oscar-fit", Arguments{bench.stats(), "-o", bench.rotations(), "--granularity", "head"} + on));
  const auto clip = tool("oscar-clip", Arguments{bench.stats(), "--rotations", bench.rotations(), "-o", bench.clip()} + on);
  const auto verify = tool("oscar-verify", Arguments{bench.stats(), "--rotations", bench.rotations(), "--clip", bench.clip(), "--json",
                                                     (bench / "report.json").string()} + on);
  done(clip), done(verify);
  contents["stdout of clip"] = clip.out;
  contents["stdout of verify"] = verify.out;
  for (const auto& name : bench.files()) contents[name] = read(bench / name);
  return contents;
}

TEST(Determinism, EveryArtifactOfAllTools) {
  const Bench bench;
  const auto one = artifacts(bench, "1"), two = artifacts(bench, "2"), three = artifacts(bench, "3"), again = artifacts(bench, "2");
  EXPECT_GE(one.size(), 9u);
  for (const auto& [name, bytes] : one) {
    EXPECT_FALSE(bytes.empty()) << name;
    for (const auto* other : {&two, &three, &again}) {
      ASSERT_TRUE(other->contains(name)) << name;
      EXPECT_TRUE(other->at(name) == bytes) << name << " differs";
    }
  }
}

TEST(Determinism, SameThreadsSameBytesWithoutTheOption) {
  const Bench bench;
  ASSERT_EQ(run(bench.dump_command(bench.stats())).code, 0);
  ASSERT_EQ(run(bench.dump_command((bench / "again.h5").string())).code, 0);
  EXPECT_TRUE(read(bench.stats()) == read(bench / "again.h5"));
}

// Nothing of the place where the files lie, or of the time, enters an artifact.
TEST(Determinism, PathsDoNotMatter) {
  const Bench a, b;
  for (const Bench* bench : {&a, &b}) ASSERT_NO_FATAL_FAILURE(run_pipeline(*bench));
  ASSERT_EQ(a.files(), b.files());
  for (const auto& name : a.files()) {
    auto bytes = read(a / name);
    // stats.h5 alone says where the model lies, for end-to-end runs.
    for (size_t at = 0; name == "stats.h5" && (at = bytes.find(a.model(), at)) != bytes.npos;)
      bytes.replace(at, a.model().size(), b.model());
    EXPECT_TRUE(bytes == read(b / name)) << name;
    EXPECT_TRUE(name == "stats.h5" || bytes.find(a.path().string()) == bytes.npos) << name << " names a folder";
  }
}

TEST(EndToEnd, PrintsTheNumbersOfTheFourPrograms) {
  const Bench bench({}, 24000);
  const auto whole = run({binary("end_to_end").string(), bench.model(), bench.text(), (bench / "whole").string()});
  ASSERT_EQ(whole.code, 0) << whole;
  ASSERT_EQ(run({binary("oscar-dump").string(), "--model", bench.model(), "--text", bench.text(), "--seq-len", "1024", "--probes", "4",
                 "--deterministic", "-o", bench.stats()}).code, 0);
  ASSERT_EQ(tool("oscar-fit", {bench.stats(), "-o", bench.rotations()}).code, 0);
  ASSERT_EQ(tool("oscar-clip", {bench.stats(), "--rotations", bench.rotations(), "-o", bench.clip()}).code, 0);
  const auto verify = tool("oscar-verify", {bench.stats(), "--rotations", bench.rotations(), "--clip", bench.clip()});
  ASSERT_EQ(verify.code, 0) << verify;
  EXPECT_EQ(whole.out, verify.out);
  EXPECT_TRUE(read(bench / "whole/stats.h5") == read(bench.stats()));
  EXPECT_EQ(read(bench / "whole/clip.json"), read(bench.clip()));
}

}  // namespace
}  // namespace oscar::test
