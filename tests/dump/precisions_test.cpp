// One model in the precisions that checkpoints come in: the statistics of the GGUF file, within what rounding
// its weights does.
#include "libdump/dump.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

// Largest relative difference of a second moment of queries, keys, values or outputs, over the layers.
double difference(const StatisticsReader& a, const StatisticsReader& b) {
  double worst = 0;
  for (const LayerShape& shape : b.header().layers) {
    const LayerSums x = a.layer(shape.layer).sums, y = b.layer(shape.layer).sums;
    for (const Sum sum : {Sum::qq, Sum::kk, Sum::vv, Sum::oo, Sum::qq_mass})
      worst = std::max(worst, test::relative_error(x.values(sum), y.values(sum)));
  }
  return worst;
}

TEST(Precisions, StatisticsOfTheGgufFile) {
  OSCAR_NEED_MODEL(gguf);
  const char* python = std::getenv("OSCAR_TEST_PYTHON");
  if (!python || !*python)
    GTEST_SKIP() << "needs OSCAR_TEST_PYTHON, a Python with torch, safetensors and gguf";
  const test::TempDir folder;
  const auto script = fs::path(OSCAR_SOURCE_DIR) / "tests/dump/make_precisions.py";
  const auto outcome = test::run({python, script.string(), gguf.string(), (folder / "hf").string()});
  ASSERT_EQ(outcome.code, 0) << outcome;

  SequenceSet set;
  for (int s = 0; s < 2; ++s) {
    auto& ids = set.calibration.emplace_back();
    for (int i = 0; i < 128; ++i) ids.push_back((i * i * 131 + s * 9771 + 7 * i) % 40000);
  }
  DumpOptions options;
  options.windows = {4, 16};
  options.rows = 0;
  const auto dump_of = [&](const fs::path& path, const std::string& name) {
    const auto model = open_model(path, Precision::Float32);
    dump(*model, set, describe(*model, nullptr, "as given", set, options), options, folder / name, {});
    return StatisticsReader(folder / name);
  };
  const StatisticsReader expected = dump_of(gguf, "gguf.h5");
  // Unit roundoffs of the weights are 0, 2^-9, 2^-12 and 2^-4; a second moment sums thousands of independent
  // ones, but thirty layers hand them on.
  const std::pair<const char*, double> kinds[] = {
      {"f32", 1e-5}, {"bf16", 2e-2}, {"f16", 3e-3}, {"fp8", 3e-1}};
  double last = 0;
  for (const auto& [kind, tolerance] : kinds) {
    last = difference(dump_of(folder / "hf" / kind, std::string(kind) + ".h5"), expected);
    EXPECT_LE(last, tolerance) << kind;
    RecordProperty(kind, std::to_string(last));
  }
  EXPECT_GT(last, 1e-3) << "FP8 was not read as FP8";
}

}  // namespace
}  // namespace oscar
