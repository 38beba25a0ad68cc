// Several workers are one run: the same bits of every statistic, and the same file when their shards are
// joined.
#include "libdump/shard.h"

#include "libdump/dump.h"
#include "tests/dump/same_rows.h"
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

SequenceSet set_of(const std::vector<int>& calibration, const std::vector<int>& probes) {
  SequenceSet set;
  for (const int n : calibration) set.calibration.emplace_back(static_cast<size_t>(n), 1);
  for (const int n : probes) set.probes.emplace_back(static_cast<size_t>(n), 2);
  return set;
}
using Ids = std::vector<int64_t>;

TEST(Shard, LongestFirstToTheLeastLoaded) {
  const auto dealt = deal(set_of({10, 50, 20, 30, 30}, {5, 60}), 2);
  EXPECT_EQ(dealt[0].calibration, (Ids{1, 2}));  // 50, then 20 when 60 is on the other
  EXPECT_EQ(dealt[1].calibration, (Ids{0, 3, 4}));
  EXPECT_EQ(dealt[0].probes, (Ids{1}));  // both have 70 tokens: the first takes 60
  EXPECT_EQ(dealt[1].probes, (Ids{0}));
  const auto one = deal(set_of({3, 4}, {2}), 1);
  EXPECT_EQ(one[0].calibration, (Ids{0, 1}));
  EXPECT_EQ(one[0].probes, (Ids{0}));
}

TEST(Shard, EverySequenceIsDealtOnce) {
  const SequenceSet set = set_of({9, 9, 9, 9, 9, 4, 17, 80, 3, 3, 3}, {6, 6, 6});
  for (int workers = 1; workers <= 11; ++workers) {
    Ids calibration, probes;
    for (const Dealt& dealt : deal(set, workers)) {
      EXPECT_FALSE(dealt.calibration.empty());
      calibration.insert(calibration.end(), dealt.calibration.begin(), dealt.calibration.end());
      probes.insert(probes.end(), dealt.probes.begin(), dealt.probes.end());
    }
    std::ranges::sort(calibration);
    std::ranges::sort(probes);
    EXPECT_EQ(calibration, (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_EQ(probes, (Ids{0, 1, 2}));
  }
  EXPECT_THROW(deal(set, 12), std::invalid_argument);
}

TEST(Shard, PlanDigestKnowsTextAndWorkers) {
  const SequenceSet set = set_of({9, 8, 7}, {6}), other = set_of({9, 8, 7}, {5});
  const auto digest_of = [](const SequenceSet& s, int n, const char* options) {
    return plan_digest(s, deal(s, n), options);
  };
  EXPECT_EQ(digest_of(set, 2, "a"), digest_of(set, 2, "a"));
  EXPECT_NE(digest_of(set, 2, "a"), digest_of(set, 3, "a"));
  EXPECT_NE(digest_of(set, 2, "a"), digest_of(set, 2, "b"));
  EXPECT_NE(digest_of(set, 2, "a"), digest_of(other, 2, "a"));
}

TEST(Shard, NamesOfFiles) {
  EXPECT_EQ(shard_path("out/stats.h5", {0, 1}), "out/stats.h5");
  EXPECT_EQ(shard_path("out/stats.h5", {2, 4}), "out/stats.shard-2-of-4.h5");
  EXPECT_EQ(shard_path("stats", {0, 2}), "stats.shard-0-of-2");
}

struct Toy {
  test::TempDir dir;
  fs::path model = dir / "toy.gguf";
  SequenceSet sequences;
  DumpOptions options;

  Toy() {
    test::write_gguf(model, test::toy_model());
    const int vocabulary = open_model(model, Precision::Float32)->config().vocabulary;
    for (int s = 0; s < 7; ++s) sequences.calibration.push_back(ids(70 + 17 * (s % 4), s, vocabulary));
    for (int s = 0; s < 3; ++s) sequences.probes.push_back(ids(64 + 5 * s, 20 + s, vocabulary));
    options.windows = {8, 16};
    options.rows = 150;
    options.score_queries = 0.7;
    options.deterministic = true;
  }
  static std::vector<int32_t> ids(int count, int seed, int vocabulary) {
    std::vector<int32_t> out;
    for (int i = 0; i < count; ++i) out.push_back((i * i * 31 + seed * 977 + i) % vocabulary);
    return out;
  }
  fs::path dump_to(const std::string& name, const DumpOptions& how) const {
    const auto opened = open_model(model, how.precision);
    const fs::path path = shard_path(dir / name, how.shard);
    dump(*opened, sequences, describe(*opened, nullptr, "as given", sequences, how), how, path, {});
    return path;
  }
  std::vector<fs::path> shards(const std::string& name, int count, DumpOptions how) const {
    std::vector<fs::path> paths;
    for (int i = 0; i < count; ++i) {
      how.shard = {i, count};
      how.threads = how.deterministic ? 1 + i % 2 : how.threads;
      paths.push_back(dump_to(name, how));
    }
    return paths;
  }
};

void expect_same(const StatisticsReader& a, const StatisticsReader& b) {
  EXPECT_EQ(a.header().provenance.text_digest, b.header().provenance.text_digest);
  EXPECT_EQ(a.header().provenance.tokens, b.header().provenance.tokens);
  EXPECT_EQ(a.header().provenance.sequence_lengths, b.header().provenance.sequence_lengths);
  EXPECT_EQ(a.header().provenance.shard, "0/1");
  EXPECT_EQ(a.header().probe_ids, b.header().probe_ids);
  for (const LayerShape& shape : b.header().layers) {
    const LayerStatistics x = a.layer(shape.layer), y = b.layer(shape.layer);
    for (const SumInfo& info : sum_table())
      EXPECT_TRUE(std::ranges::equal(x.sums.values(info.sum), y.sums.values(info.sum)))
          << shape.layer << " " << info.name;
    EXPECT_EQ(x.sums.score_queries, y.sums.score_queries);
    EXPECT_EQ(x.value_metric, y.value_metric);
    test::expect_same_rows(a.rows(shape.layer), b.rows(shape.layer), 150);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(a.probe(shape.layer, i).q, b.probe(shape.layer, i).q);
      EXPECT_EQ(a.probe(shape.layer, i).v, b.probe(shape.layer, i).v);
    }
  }
}

TEST(Shard, TwoAndThreeWorkersAreOneRunToTheBit) {
  for (const Precision precision : {Precision::Float32, Precision::BFloat16}) {
    Toy toy;
    toy.options.precision = precision;
    const fs::path whole = toy.dump_to("whole.h5", toy.options);
    const StatisticsReader one(whole);
    EXPECT_GT(one.layer(0).sums.scalar(Sum::proxy_weight, 0), 0);
    for (const int workers : {2, 3}) {
      auto paths = toy.shards("stats.h5", workers, toy.options);
      EXPECT_THROW(StatisticsReader{paths[0]}, std::invalid_argument);
      std::ranges::reverse(paths);
      expect_same(StatisticsReader(paths, 2), one);
      write_whole(StatisticsReader(paths), toy.dir / "joined.h5");
      EXPECT_TRUE(test::read(toy.dir / "joined.h5") == test::read(whole)) << workers << " workers";
    }
  }
}

TEST(Shard, WithoutTheOptionWithinRounding) {
  Toy toy;
  toy.options.deterministic = false;
  const StatisticsReader one(toy.dump_to("whole.h5", toy.options));
  const StatisticsReader two(toy.shards("stats.h5", 2, toy.options));
  for (const LayerShape& shape : one.header().layers) {
    const LayerSums a = two.layer(shape.layer).sums, b = one.layer(shape.layer).sums;
    for (const SumInfo& info : sum_table())
      EXPECT_LE(test::relative_error(a.values(info.sum), b.values(info.sum)), 1e-12) << info.name;
  }
}

TEST(Shard, WithoutTheSecondPassEverythingElseIsThere) {
  Toy toy;
  toy.options.proxy = false;
  const StatisticsReader one(toy.dump_to("whole.h5", toy.options));
  const auto paths = toy.shards("stats.h5", 2, toy.options);
  const StatisticsReader two(paths);
  expect_same(two, one);
  EXPECT_EQ(two.layer(1).sums.scalar(Sum::proxy_weight, 0), 0);
  toy.options.proxy = true;
  const auto others = toy.shards("proxy.h5", 2, toy.options);
  EXPECT_LT(fs::file_size(paths[0]), fs::file_size(others[0]));
  try {
    StatisticsReader({paths[0], others[1]});
    ADD_FAILURE() << "shards of two runs were merged";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("command is '"), std::string::npos) << error.what();
  }
}

TEST(Shard, AnInterruptedWorkerResumes) {
  Toy toy;
  toy.options.shard = {1, 2};
  const fs::path whole = toy.dump_to("whole.h5", toy.options);
  const auto model = open_model(toy.model, Precision::Float32);
  const auto stop = [](const DumpProgress& p) {
    if (p.layer == 2) throw std::runtime_error("pulled plug");
  };
  const Provenance provenance = describe(*model, nullptr, "as given", toy.sequences, toy.options);
  const fs::path cut = toy.dir / "cut.h5";
  EXPECT_THROW(dump(*model, toy.sequences, provenance, toy.options, cut, stop), std::runtime_error);
  toy.options.resume = true;
  DumpOptions other = toy.options;
  other.shard = {0, 2};
  EXPECT_THROW(dump(*model, toy.sequences, provenance, other, cut, {}), std::invalid_argument)
      << "another worker";
  dump(*model, toy.sequences, provenance, toy.options, cut, {});
  EXPECT_TRUE(test::read(cut) == test::read(whole));
}

TEST(Shard, WhatIsOfOneProcessIsRefused) {
  Toy toy;
  toy.options.shard = {0, 2};
  DumpOptions perplexity = toy.options, raw = toy.options;
  perplexity.perplexity = true;
  raw.save_qkv = toy.dir / "raw";
  EXPECT_THROW(toy.dump_to("a.h5", perplexity), std::invalid_argument);
  EXPECT_THROW(toy.dump_to("a.h5", raw), std::invalid_argument);
  EXPECT_FALSE(fs::exists(toy.dir / "raw"));
}

}  // namespace
}  // namespace oscar
