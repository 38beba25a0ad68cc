// Runs in a bounded memory: how they are planned, and that they give what others give.
#include "libdump/memory_plan.h"

#include "libdump/dump.h"
#include "libdump/spill.h"
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

MemoryNeeds needs_of_a_large_model() {
  MemoryNeeds needs;
  needs.layers = 32;
  needs.threads = 4;
  needs.weights = 800 * kMiB;
  needs.loading = 300 * kMiB;
  needs.hidden = 2000 * kMiB;
  needs.longest_hidden = 32 * kMiB;
  needs.rows = 500 * kMiB;
  needs.longest_rows = 16 * kMiB;
  needs.activations = 400 * kMiB;
  needs.results = 50 * kMiB;
  return needs;
}

TEST(MemoryPlan, GivesUpTheCheapestThingFirst) {
  const MemoryNeeds needs = needs_of_a_large_model();
  EXPECT_GT(plan_memory(needs, 0).peak, plan_memory(needs, int64_t{1} << 50).peak) << "what is freed is kept";
  const MemoryPlan free = plan_memory(needs, int64_t{1} << 50);
  EXPECT_EQ(free.block, 4);
  EXPECT_TRUE(free.overlap);
  EXPECT_FALSE(free.spill);
  EXPECT_EQ(free.spilled, 0);
  EXPECT_EQ(plan_memory(needs, free.peak).peak, free.peak);

  const MemoryPlan spilled = plan_memory(needs, free.peak - 1);
  EXPECT_TRUE(spilled.spill);
  EXPECT_TRUE(spilled.overlap);
  EXPECT_EQ(spilled.block, 4);
  EXPECT_EQ(spilled.spilled, needs.hidden + 2 * needs.rows);
  const MemoryPlan in_turn = plan_memory(needs, spilled.peak - 1);
  EXPECT_FALSE(in_turn.overlap);
  EXPECT_EQ(in_turn.block, 4);
  int64_t limit = free.peak;
  for (int block = 4; limit > 0; limit = plan_memory(needs, limit).peak - 1) {  // down to the smallest
    const MemoryPlan plan = plan_memory(needs, limit);
    EXPECT_LE(plan.peak, limit);
    EXPECT_LE(plan.block, block);
    block = plan.block;
    if (plan.peak == smallest_plan(needs).peak) break;
  }
  EXPECT_EQ(plan_memory(needs, limit).block, 1);
}

TEST(MemoryPlan, TooLittleIsRefusedWithWhatWouldDo) {
  const MemoryNeeds needs = needs_of_a_large_model();
  const int64_t least = smallest_plan(needs).peak;
  EXPECT_NO_THROW(plan_memory(needs, least));
  try {
    plan_memory(needs, least - 1);
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("need at least " + std::to_string((least + kMiB - 1) / kMiB) + " MiB"),
              std::string::npos)
        << text;
  }
}

TEST(Spill, KeepsWhatIsPutAway) {
  const test::TempDir dir;
  for (const auto& folder : {std::filesystem::path(), dir.path()}) {
    Spill spill({1000, 0, 5000, 1}, folder);
    ASSERT_EQ(spill.count(), 4u);
    EXPECT_EQ(spill.in_file(), !folder.empty());
    for (size_t i = 0; i < 4; ++i) {
      const size_t size = std::array{1000, 0, 5000, 1}[i];
      for (size_t j = 0; j < size; ++j) spill.piece(i)[j] = static_cast<float>(i * 10000 + j);
      spill.put_away(i);
    }
    for (size_t j = 0; j < 5000; ++j) ASSERT_EQ(spill.piece(2)[j], static_cast<float>(20000 + j));
    EXPECT_EQ(spill.piece(0)[999], 999);
    EXPECT_EQ(spill.piece(3)[0], 30000);
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "the file has a name";
  }
  EXPECT_THROW(Spill({10}, dir / "no-such-folder"), std::runtime_error);
  EXPECT_THROW(Spill({int64_t{1} << 50}, dir.path()), std::runtime_error) << "more than any disk";
}

TEST(Dump, ABoundOnMemoryChangesNoBit) {
  const test::TempDir dir;
  test::write_gguf(dir / "toy.gguf", test::toy_model());
  const auto model = open_model(dir / "toy.gguf", Precision::Float32);
  SequenceSet set;
  for (int s = 0; s < 6; ++s) {
    auto& ids = (s < 5 ? set.calibration : set.probes).emplace_back();
    for (int i = 0; i < 80 + 9 * s; ++i)
      ids.push_back((i * i * 31 + s * 977 + i) % model->config().vocabulary);
  }
  DumpOptions options;
  options.windows = {8, 16};
  options.rows = 60;
  options.threads = 3;
  options.deterministic = true;
  const auto dump_to = [&](const std::string& name) {
    dump(*model, set, describe(*model, nullptr, "as given", set, options), options, dir / name, {});
    EXPECT_FALSE(std::filesystem::exists(dir / (name + ".partial")));
    return StatisticsReader(dir / name);
  };
  const StatisticsReader whole = dump_to("whole.h5");
  EXPECT_EQ(whole.header().memory_plan, "");
  options.memory = smallest_plan(needs_of(*model, set, options)).peak;
  const StatisticsReader bounded = dump_to("bounded.h5");
  EXPECT_NE(bounded.header().memory_plan.find("1 sequence at a time; hidden states, k and v spill to"),
            std::string::npos)
      << bounded.header().memory_plan;
  for (const LayerShape& shape : whole.header().layers) {
    const LayerSums a = bounded.layer(shape.layer).sums, b = whole.layer(shape.layer).sums;
    for (const SumInfo& info : sum_table())
      EXPECT_TRUE(std::ranges::equal(a.values(info.sum), b.values(info.sum))) << info.name;
    EXPECT_EQ(bounded.rows(shape.layer).k, whole.rows(shape.layer).k);
    EXPECT_EQ(bounded.probe(shape.layer, 0).q, whole.probe(shape.layer, 0).q);
  }
}

}  // namespace
}  // namespace oscar
