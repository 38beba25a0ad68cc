// Every artifact in the hands of the libraries that consume it: OSCAR_TEST_PYTHON, a Python with torch,
// safetensors, h5py, gguf and transformers.
#include <cstdlib>

#include "tests/apps/tools.h"

namespace oscar::test {
namespace {

class AppsInterop : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("OSCAR_TEST_PYTHON");
    if (!python || !*python)
      GTEST_SKIP()
          << "needs OSCAR_TEST_PYTHON, a Python with torch, safetensors, h5py, gguf and transformers";
    python_ = python;
  }
  Outcome script(const Arguments& arguments) const {
    const auto path = fs::path(OSCAR_SOURCE_DIR) / "tests/apps/interop.py";
    const auto outcome = run(Arguments{python_, path.string()} + arguments);
    std::cout << outcome.out;
    return outcome;
  }
  static void fit(const Arguments& arguments) {
    const auto outcome = tool("oscar-fit", arguments + Arguments{"-q"});
    ASSERT_EQ(outcome.code, 0) << outcome;
  }
  std::string python_;
};

TEST_F(AppsInterop, EveryArtifactLoads) {
  const Bench bench;
  const auto at = [&](const char* name) { return (bench / name).string(); };
  const auto dump = run(bench.dump_command(bench.stats()) + Arguments{"--save-qkv", at("qkv")});
  ASSERT_EQ(dump.code, 0) << dump;
  const std::string k = at("rotations/k_rotation_qqt_r_h_pbr.pt");
  for (const auto& command : std::vector<Arguments>{
           {bench.stats(), "-o", at("rotations")},
           {bench.stats(), "--granularity", "head", "-o", at("heads")},
           {bench.stats(), "--method", "nova:rows=1024", "-o", at("nova"), "--allow-undersampled"},
           {bench.stats(), "--method", "awvq:shape=8x4:rows=1024", "-o", at("awvq"), "--allow-undersampled"},
           {"--convert", k, "--to", "v3", "-o", at("v3.pt")},
           {"--convert", bench.stats(), "-o", at("oscar_moments_rank0.pt")},
           {"--convert", at("qkv"), "-o", at("oscar_rows_rank0.pt")},
           {"--convert", at("awvq"), "--to", "pq", "-o", at("pq")},
           {"--convert", at("rotations"), "--base", bench.model(), "-o", at("rotated.gguf")}}) {
    ASSERT_NO_FATAL_FAILURE(fit(command));
  }
  const auto outcome = script({"check", bench.path().string()});
  EXPECT_EQ(outcome.code, 0) << outcome;
}
TEST_F(AppsInterop, AnAbsorbedCheckpointGivesTheOriginalLogits) {
  const TempDir folder;
  const auto outcome = script({"absorb", folder.path().string(), binary("oscar-fit").string()});
  EXPECT_EQ(outcome.code, 0) << outcome;
}
TEST_F(AppsInterop, AnAbsorbedRealModelGivesTheOriginalLogits) {
  OSCAR_NEED_MODEL(model);
  const TempDir folder;
  const std::string rotations = (folder / "rotations").string();
  ASSERT_NO_FATAL_FAILURE(
      fit({"--method", "hadamard", "--layers", "30", "--head-dim", "64", "--format", "pt", "-o", rotations}));
  const auto outcome = script({"model", folder.path().string(), binary("oscar-fit").string(),
                               fs::absolute(model).string(), rotations + "/v_rotation_hadamard.pt"});
  EXPECT_EQ(outcome.code, 0) << outcome;
}

}  // namespace
}  // namespace oscar::test
