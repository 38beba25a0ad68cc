#include "libcalib/artifacts/statistics_file.h"

#include "formats/error.h"
#include "libcalib/exact_sums.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/targets.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

const LayerShape kShapes[] = {test::shape_of(2, 4, 2, 8, 12), test::shape_of(5, 6, 3, 16, 16)};

StatisticsHeader header_of(const std::string& shard = "0/1", const std::string& text = "text") {
  StatisticsHeader h;
  Provenance& p = h.provenance;
  p.tool_version = "0.1.0";
  p.model_name = "toy";
  p.architecture = "llama";
  p.model_digest = "model";
  p.tokenizer_digest = "tokenizer";
  p.text_digest = text;
  p.bos_policy = "none";
  p.rope = "theta 10000";
  p.dtype = "float32";
  p.device = "cpu";
  p.command = "--seq-len 60";
  p.layers_total = 6;
  p.tokens = 120;
  p.sequence_lengths = {60, 60};
  p.shard = shard;
  if (const int count = std::stoi(shard.substr(shard.find('/') + 1)); count > 1) {
    const int64_t index = std::stoi(shard);
    p.sequence_lengths.assign(static_cast<size_t>(2 * count), 60);
    h.shard_sequences = {2 * index, 2 * index + 1};
    if (index == 0) h.shard_probes = {0, 1};
    h.shard_plan = "plan";
  }
  h.windows = {4, 8};
  h.has_scores = true;
  h.layers.assign(std::begin(kShapes), std::end(kShapes));
  h.probe_lengths = {7, 9};
  h.probe_ids = {{5, 0, 49151, 5, 8, 1, 2}, {9, 8, 7, 6, 5, 4, 3, 2, 1}};
  return h;
}
std::vector<Probe> probes_of(const LayerShape& s) {
  std::vector<Probe> probes;
  for (const int64_t t : {7, 9}) {
    const auto r = test::rows_of(s, t, static_cast<uint64_t>(t));
    probes.push_back({t, r.q, r.k, r.v});
  }
  return probes;
}
LayerStatistics layer_of(const LayerShape& s, uint64_t seed) {
  return test::statistics_of(s, 120, seed + static_cast<uint64_t>(s.layer));
}

// Without the second pass, which shards leave to who merges them.
LayerSums without_second_pass(LayerSums sums) {
  for (const Sum sum : {Sum::vv_proxy, Sum::proxy_weight}) std::ranges::fill(sums.values(sum), 0);
  return sums;
}

void write_file(const fs::path& path, const StatisticsHeader& header, uint64_t seed = 1,
                DType dtype = DType::F32) {
  StatisticsWriter writer(path, dtype);
  for (const auto& shape : header.layers) {
    std::vector<Probe> probes = probes_of(shape);
    if (!header.shard_plan.empty() && header.shard_probes.empty()) probes.assign(2, {});
    LayerStatistics layer = layer_of(shape, seed);
    if (!header.shard_sequences.empty()) {
      layer.sums = without_second_pass(layer.sums);
      for (int64_t& sequence : layer.rows.sequence) sequence += header.shard_sequences[0];
    }
    writer.layer(layer, probes);
  }
  writer.finish(header);
}
void expect_equal(const LayerSums& a, const LayerSums& b) {
  EXPECT_EQ(a.shape(), b.shape());
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.score_queries, b.score_queries);
  EXPECT_EQ(a.score_tokens, b.score_tokens);
  for (const auto& sum : sum_table())
    EXPECT_TRUE(std::ranges::equal(a.values(sum.sum), b.values(sum.sum))) << sum.name;
}
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "no std::invalid_argument was thrown";
}

TEST(StatisticsFile, CapsAndSinkLogits) {
  const test::TempDir dir;
  auto header = header_of();
  header.layers[0].logit_cap = 50;
  header.layers[0].sink_logits.assign(header.layers[0].q_heads, 0.25f);
  write_file(dir / "a.h5", header);
  const StatisticsReader reader(dir / "a.h5");
  EXPECT_EQ(reader.header().layers, header.layers);
  EXPECT_EQ(reader.layer(header.layers[0].layer).sums.shape(), header.layers[0]);
}

// A file as it was before the sums of the attention output: without those, or without one of them.
void copy_without(const fs::path& from, const fs::path& to, const std::vector<std::string>& left_out) {
  const Hdf5Reader reader(from);
  Hdf5Writer writer(to);
  const std::function<void(const std::string&)> copy = [&](const std::string& group) {
    for (const auto& name : reader.children(group)) {
      const std::string path = group + (group == "/" ? "" : "/") + name;
      const bool digits = name.find_first_not_of("0123456789") == std::string::npos;
      if (digits || name == "layers" || name == "rows" || name == "probes") {
        copy(path);
      } else if (std::ranges::find(left_out, name) == left_out.end()) {
        writer.dataset(path, reader.dataset(path));
      }
    }
    for (const char* name :
         {"layer", "q_heads", "kv_heads", "dim_k", "dim_v", "sliding_window", "tokens", "score_queries",
          "score_tokens", "layers_total", "window_sink", "window_recent", "has_scores"}) {
      if (const auto value = reader.integer(group, name)) writer.attribute(group, name, *value);
    }
    if (const auto scale = reader.number(group, "scale")) writer.attribute(group, "scale", *scale);
    if (group != "/") return;
    writer.attribute(group, "schema", reader.text(group, "schema").value());
    for (const auto& field : kProvenanceTexts) {
      writer.attribute(group, field.name, reader.text(group, field.name).value());
    }
  };
  copy("/");
  writer.close();
}
const std::vector<std::string> kOutputSums{"qq_out", "out", "x", "xk", "xkk", "stream", "stream_queries"};

TEST(StatisticsFile, RoundTrip) {
  const test::TempDir dir;
  const auto header = header_of();
  write_file(dir / "a.h5", header);
  const StatisticsReader reader(dir / "a.h5");
  const auto& h = reader.header();
  EXPECT_EQ(h.provenance.model_digest, "model");
  EXPECT_EQ(h.provenance.model_path, "");
  EXPECT_EQ(h.provenance.id_space, "global");
  EXPECT_EQ(h.provenance.layers_total, 6);
  EXPECT_EQ(h.provenance.tokens, 120);
  EXPECT_EQ(h.provenance.sequence_lengths, header.provenance.sequence_lengths);
  EXPECT_EQ(h.windows, header.windows);
  EXPECT_TRUE(h.has_scores);
  EXPECT_TRUE(h.has_output_scores);
  EXPECT_EQ(h.layers, header.layers);
  EXPECT_EQ(h.probe_lengths, header.probe_lengths);
  EXPECT_EQ(h.probe_ids, header.probe_ids);
  for (const auto& shape : kShapes) {
    const auto expected = layer_of(shape, 1), found = reader.layer(shape.layer);
    expect_equal(found.sums, expected.sums);
    EXPECT_EQ(found.value_metric, expected.value_metric);
    EXPECT_EQ(found.rows.count(), 0);
    const auto rows = reader.rows(shape.layer);
    EXPECT_EQ(rows.position, expected.rows.position);
    EXPECT_EQ(rows.sequence, expected.rows.sequence);
    EXPECT_EQ(rows.k, expected.rows.k);
    EXPECT_EQ(rows.v, expected.rows.v);
    EXPECT_EQ(rows.u, expected.rows.u);
    EXPECT_EQ(rows.w, expected.rows.w);
    EXPECT_EQ(rows.x, expected.rows.x);
    const auto probe = reader.probe(shape.layer, 1), exact = probes_of(shape)[1];
    EXPECT_EQ(probe.tokens, 9);
    EXPECT_EQ(probe.q, exact.q);
    EXPECT_EQ(probe.k, exact.k);
    EXPECT_EQ(probe.v, exact.v);
  }
  EXPECT_THROW(reader.layer(3), std::invalid_argument);
  EXPECT_THROW(reader.probe(2, 2), std::invalid_argument);
}

TEST(StatisticsFile, RowsIn16Bits) {
  const test::TempDir dir;
  write_file(dir / "a.h5", header_of(), 1, DType::BF16);
  const StatisticsReader reader(dir / "a.h5");
  expect_equal(reader.layer(2).sums, layer_of(kShapes[0], 1).sums);
  const auto probe = reader.probe(2, 0), exact = probes_of(kShapes[0])[0];
  for (size_t i = 0; i < exact.q.size(); ++i) ASSERT_EQ(probe.q[i], bf16_to_float(float_to_bf16(exact.q[i])));
  write_file(dir / "b.h5", header_of(), 1, DType::F16);
  const auto half = StatisticsReader(dir / "b.h5").probe(2, 0);
  std::vector<std::byte> bytes(exact.q.size() * 2);
  std::vector<float> rounded(exact.q.size());
  from_float(DType::F16, exact.q.data(), exact.q.size(), bytes.data());
  to_float(DType::F16, bytes.data(), exact.q.size(), rounded.data());
  EXPECT_EQ(half.q, rounded);
  EXPECT_NE(half.q, probe.q);
  EXPECT_THROW(StatisticsWriter(dir / "c.h5", DType::F64), std::invalid_argument);
}

TEST(StatisticsFile, ProbeIdsMayBeMissingButNotOfOtherLengths) {
  const test::TempDir dir;
  auto header = header_of();
  header.probe_ids.clear();
  write_file(dir / "without.h5", header);
  const StatisticsReader reader(dir / "without.h5");
  EXPECT_TRUE(reader.header().probe_ids.empty());
  EXPECT_EQ(reader.probe(2, 0).tokens, 7);

  header.probe_ids = {{1, 2, 3}, {4}};
  write_file(dir / "short.h5", header);
  EXPECT_THROW(StatisticsReader(dir / "short.h5"), std::runtime_error);
}

TEST(StatisticsFile, FilesWithoutTheOutputSumsAreRead) {
  const test::TempDir dir;
  write_file(dir / "a.h5", header_of());
  copy_without(dir / "a.h5", dir / "old.h5", kOutputSums);
  const StatisticsReader reader(dir / "old.h5");
  EXPECT_TRUE(reader.header().has_scores);
  EXPECT_FALSE(reader.header().has_output_scores);
  LayerSums expected = layer_of(kShapes[0], 1).sums;
  for (const auto& name : kOutputSums) {
    const auto info = std::ranges::find(sum_table(), name, &SumInfo::name);
    ASSERT_NE(info, sum_table().end());
    std::ranges::fill(expected.values(info->sum), 0.0);
  }
  const LayerSums sums = reader.layer(2).sums;
  expect_equal(sums, expected);
  EXPECT_NE(layer_of(kShapes[0], 1).sums.scalar(Sum::out, 0), 0);
  EXPECT_EQ(reader.rows(2).u.size(), layer_of(kShapes[0], 1).rows.u.size());
  EXPECT_TRUE(reader.rows(2).x.empty());
  EXPECT_NO_THROW(find_target("qqt-mass").of_head(sums, 0));
  EXPECT_NE(message([&] { find_target("qqt-out").of_head(sums, 0); }).find("dump again, or use qqt-mass"),
            std::string::npos);
}

TEST(StatisticsFile, EveryOtherSumAndHalfOfTheOutputSumsAreMissed) {
  const test::TempDir dir;
  write_file(dir / "a.h5", header_of());
  for (const SumInfo& sum : sum_table()) {
    copy_without(dir / "a.h5", dir / "b.h5", {std::string(sum.name)});
    if (sum.name == "x") continue;  // beside it rows/x, which may be missing
    EXPECT_THROW(StatisticsReader(dir / "b.h5").layer(2), std::runtime_error) << sum.name;
  }
}

TEST(StatisticsFile, SparseAndEmptyParts) {
  const test::TempDir dir;
  auto header = header_of();
  header.probe_lengths.clear();
  header.probe_ids.clear();
  header.provenance.sequence_lengths.clear();
  LayerStatistics layer;
  layer.sums = LayerSums(kShapes[0]);
  header.layers = {kShapes[0]};
  StatisticsWriter writer(dir / "a.h5", DType::F32);
  writer.layer(layer, {});
  writer.finish(header);
  const StatisticsReader reader(dir / "a.h5");
  EXPECT_TRUE(reader.header().probe_lengths.empty());
  EXPECT_TRUE(reader.layer(2).value_metric.empty());
  EXPECT_EQ(reader.rows(2).count(), 0);
}

TEST(StatisticsFile, AssembledPartsAreTheUninterruptedFile) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const test::TempDir dir;
    const auto header = header_of();
    write_file(dir / "whole.h5", header, 1, dtype);
    std::vector<fs::path> parts;
    for (const auto& shape : kShapes) {
      auto part = header;
      part.layers = {shape};
      parts.push_back(dir / fmt::format("part{}.h5", shape.layer));
      write_file(parts.back(), part, 1, dtype);
    }
    assemble(parts, header, dtype, dir / "joined.h5");
    EXPECT_EQ(test::read(dir / "whole.h5"), test::read(dir / "joined.h5"));
  }
}

TEST(StatisticsFile, SameInputsSameBytes) {
  const test::TempDir dir;
  write_file(dir / "a.h5", header_of());
  write_file(dir / "b.h5", header_of());
  EXPECT_EQ(test::read(dir / "a.h5"), test::read(dir / "b.h5"));
}

TEST(StatisticsFile, RefusesAnotherSchema) {
  const test::TempDir dir;
  {
    Hdf5Writer writer(dir / "a.h5");
    writer.attribute("/", "schema", std::string("oscar-stats/99"));
    writer.close();
  }
  EXPECT_THROW(StatisticsReader(dir / "a.h5"), std::runtime_error);
  EXPECT_THROW(StatisticsReader(dir / "missing.h5"), std::invalid_argument);
}

TEST(Merge, ShardsInAnyOrderAreTheSum) {
  const test::TempDir dir;
  write_file(dir / "0.h5", header_of("0/3"), 1);
  write_file(dir / "1.h5", header_of("1/3"), 2);
  write_file(dir / "2.h5", header_of("2/3"), 3);
  const auto a = read_merged({dir / "0.h5", dir / "1.h5", dir / "2.h5"});
  const auto b = read_merged({dir / "2.h5", dir / "0.h5", dir / "1.h5"});
  for (const auto& shape : kShapes) {
    ExactSums exact(shape);
    for (const uint64_t seed : {1, 2, 3}) exact.add(without_second_pass(layer_of(shape, seed).sums));
    expect_equal(a.layers.at(shape.layer).sums, exact.rounded());
    expect_equal(b.layers.at(shape.layer).sums, exact.rounded());
  }
  EXPECT_EQ(a.header.provenance.tokens, 360);
  EXPECT_EQ(a.header.provenance.sequence_lengths.size(), 6u);
  EXPECT_EQ(a.header.provenance.shard, "0/1");
  EXPECT_EQ(a.header.probe_ids, header_of().probe_ids);
  EXPECT_TRUE(a.notes.empty());
}

TEST(Merge, OneFileIsItself) {
  const test::TempDir dir;
  write_file(dir / "a.h5", header_of());
  const auto merged = read_merged({dir / "a.h5"});
  EXPECT_TRUE(merged.notes.empty());
  EXPECT_EQ(merged.header.provenance.text_digest, "text");
  EXPECT_THROW(read_merged({}), std::invalid_argument);
}

TEST(Merge, WholeRunsOfOtherTexts) {
  const test::TempDir dir;
  write_file(dir / "a.h5", header_of("0/1", "essays"), 1);
  write_file(dir / "b.h5", header_of("0/1", "code"), 2);
  const auto merged = read_merged({dir / "a.h5", dir / "b.h5"});
  EXPECT_NE(merged.header.provenance.text_digest, "essays");
  EXPECT_EQ(merged.header.provenance.tokens, 240);
  ASSERT_EQ(merged.notes.size(), 1u);
  EXPECT_NE(merged.notes[0].find("sst-proxy"), std::string::npos);
}

// Workers have their sequences and probes; the reader shows the run.
TEST(Merge, RowsAndProbesAreThoseOfTheRun) {
  const test::TempDir dir;
  write_file(dir / "0.h5", header_of("0/2"), 1);
  write_file(dir / "1.h5", header_of("1/2"), 2);
  const StatisticsReader run({dir / "1.h5", dir / "0.h5"});
  const SampledRows rows = run.rows(2);
  EXPECT_EQ(rows.sequence, (std::vector<int64_t>{0, 0, 0, 1, 1, 2, 2, 2, 3, 3}));
  EXPECT_EQ(rows.position, (std::vector<int64_t>{0, 2, 4, 1, 3, 0, 2, 4, 1, 3}));
  const SampledRows first = layer_of(kShapes[0], 1).rows;
  const auto width = static_cast<std::ptrdiff_t>(kShapes[0].kv_heads * kShapes[0].dim_k);
  EXPECT_TRUE(std::equal(first.k.begin() + 2 * width, first.k.begin() + 3 * width, rows.k.begin() + width));
  EXPECT_EQ(run.probe(2, 1).q, probes_of(kShapes[0])[1].q);
  EXPECT_THROW(run.probe(2, 2), std::invalid_argument);
  EXPECT_EQ(run.header().provenance.shard, "0/1");
  EXPECT_EQ(run.header().provenance.tokens, 240);
  EXPECT_TRUE(run.header().shard_plan.empty());
  EXPECT_EQ(run.paths(), (std::vector<fs::path>{dir / "0.h5", dir / "1.h5"}));
}

TEST(Merge, ShardsThatDoNotMakeUpTheRun) {
  const test::TempDir dir;
  write_file(dir / "0.h5", header_of("0/2"));
  const auto failure_of = [&](const std::vector<int64_t>& sequences) -> std::string {
    auto header = header_of("1/2");
    header.shard_sequences = sequences;
    write_file(dir / "1.h5", header);
    try {
      StatisticsReader({dir / "0.h5", dir / "1.h5"});
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(failure_of({1, 2, 3}).find("calibration sequence 1 of 4: is in"), std::string::npos) << failure_of({1, 2, 3});
  EXPECT_NE(failure_of({3}).find("calibration sequence 2 of 4 is in no shard"), std::string::npos) << failure_of({3});
  EXPECT_NE(failure_of({2, 3, 4}).find("has none of that number"), std::string::npos) << failure_of({2, 3, 4});
}

TEST(Merge, RefusesDoubledAndMissingShards) {
  const test::TempDir dir;
  write_file(dir / "0.h5", header_of("0/2"));
  write_file(dir / "0b.h5", header_of("0/2"), 2);
  write_file(dir / "1.h5", header_of("1/3"));
  write_file(dir / "all.h5", header_of());
  const auto merge = [&](std::vector<std::string> names) {
    std::vector<fs::path> paths;
    for (const auto& name : names) paths.push_back(dir / name);
    return message([&] { read_merged(paths); });
  };
  EXPECT_NE(merge({"0.h5", "0b.h5"}).find("same shard"), std::string::npos) << merge({"0.h5", "0b.h5"});
  EXPECT_NE(merge({"all.h5", "all.h5"}).find("same shard"), std::string::npos);
  EXPECT_NE(merge({"0.h5"}).find("shard 1/2 is missing: 1 of 2 files were given: "), std::string::npos) << merge({"0.h5"});
  EXPECT_NE(merge({"0.h5"}).find("0.h5 (0/2)"), std::string::npos) << merge({"0.h5"});
  EXPECT_NE(merge({"0.h5", "1.h5"}).find("shard is '0/2' in the first, '1/3' in the second"),
            std::string::npos);
}

TEST(Merge, RefusesShardsWithAndWithoutTheOutputSums) {
  const test::TempDir dir;
  write_file(dir / "0.h5", header_of("0/2"));
  write_file(dir / "1.h5", header_of("1/2"));
  for (const char* name : {"0", "1"})
    copy_without(dir / (name + std::string(".h5")), dir / (name + std::string("old.h5")), kOutputSums);
  EXPECT_NE(message([&] {
              read_merged({dir / "0.h5", dir / "1old.h5"});
            }).find("has_output_scores is 'true' in the first, 'false'"),
            std::string::npos);
  EXPECT_EQ(read_merged({dir / "0old.h5", dir / "1old.h5"}).layers.at(2).sums.scalar(Sum::out, 0), 0);
}

TEST(Merge, JoinedRowsKeepTheirImportances) {
  const test::TempDir dir;
  write_file(dir / "0.h5", header_of("0/2"));
  write_file(dir / "1.h5", header_of("1/2"), 2);
  const SampledRows rows = row_reader({dir / "0.h5", dir / "1.h5"})(2);
  const size_t count = static_cast<size_t>(rows.count() * kShapes[0].kv_heads);
  EXPECT_EQ(rows.count(), 10);
  EXPECT_EQ(rows.u.size(), count);
  EXPECT_EQ(rows.w.size(), count);
  EXPECT_EQ(rows.x.size(), count);
}

TEST(Merge, RefusesEveryForeignFieldByName) {
  const test::TempDir dir;
  write_file(dir / "0.h5", header_of("0/2"));
  const std::vector<std::pair<std::string, std::function<void(StatisticsHeader&)>>> lies{
      {"architecture is 'llama' in the first, 'other'", [](auto& h) { h.provenance.architecture = "other"; }},
      {"model_digest is 'model' in the first, 'other'", [](auto& h) { h.provenance.model_digest = "other"; }},
      {"tokenizer_digest", [](auto& h) { h.provenance.tokenizer_digest = "other"; }},
      {"bos_policy", [](auto& h) { h.provenance.bos_policy = "other"; }},
      {"rope", [](auto& h) { h.provenance.rope = "other"; }},
      {"dtype", [](auto& h) { h.provenance.dtype = "bfloat16"; }},
      {"id_space", [](auto& h) { h.provenance.id_space = "local"; }},
      {"layers_total is '6' in the first, '7'", [](auto& h) { h.provenance.layers_total = 7; }},
      {"window_sink", [](auto& h) { h.windows.sink = 5; }},
      {"window_recent", [](auto& h) { h.windows.recent = 5; }},
      {"has_scores", [](auto& h) { h.has_scores = false; }},
      {"number of layers", [](auto& h) { h.layers.pop_back(); }},
      {"layer id", [](auto& h) { h.layers[1].layer = 4; }},
      {"layer 5: q_heads", [](auto& h) { h.layers[1].q_heads = 3; }},
      {"layer 2: kv_heads", [](auto& h) { h.layers[0].kv_heads = 4; }},
      {"layer 2: dim_k", [](auto& h) { h.layers[0].dim_k = 4; }},
      {"layer 2: dim_v", [](auto& h) { h.layers[0].dim_v = 4; }},
      {"layer 2: scale", [](auto& h) { h.layers[0].scale = 1; }},
      {"layer 2: sliding_window", [](auto& h) { h.layers[0].sliding_window = 16; }},
      {"layer 2: logit_cap is '0' in the first, '30'", [](auto& h) { h.layers[0].logit_cap = 30; }},
      {"layer 2: sink_logits", [](auto& h) { h.layers[0].sink_logits.assign(h.layers[0].q_heads, 1.0f); }},
      {"text_digest", [](auto& h) { h.provenance.text_digest = "other"; }},
      {"command", [](auto& h) { h.provenance.command = "--seq-len 61"; }},
      {"shard_plan", [](auto& h) { h.shard_plan = "other"; }}};
  for (const auto& [field, lie] : lies) {
    auto header = header_of("1/2");
    lie(header);
    write_file(dir / "1.h5", header);
    const auto text = message([&] { read_merged({dir / "0.h5", dir / "1.h5"}); });
    EXPECT_NE(text.find("not of one run: " + field), std::string::npos) << field << "\n" << text;
  }
}

}  // namespace
}  // namespace oscar
