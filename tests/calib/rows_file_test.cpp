// oscar_rows_rank<r>.pt: rows come back as they were, and their sums are those of a raw dump.
#include "libcalib/artifacts/rows_file.h"

#include "libcalib/targets.h"
#include "tests/calib/pt_support.h"

namespace oscar::test {
namespace {

const LayerShape kShape = shape_of(0, 8, 4, 16, 12);

// Layers 3 and 7 of `chunks` tokens each, with lengths of their sequences or without.
RawDump raw_dump(const fs::path& folder, const std::vector<int64_t>& chunks, bool lengths = true) {
  RawDumpWriter writer(folder, DType::BF16);
  for (const int layer : {3, 7}) {
    int64_t number = 0;
    for (const int64_t n : chunks) {
      const Rows r = rows_of(kShape, n, static_cast<uint64_t>(100 * layer + number));
      writer.chunk(layer, ++number, kShape, r.q.data(), r.k.data(), r.v.data(), n);
      if (lengths) writer.lengths(number, {static_cast<int32_t>(n - 10), 10});
    }
  }
  return open_raw_dump(folder);
}
std::string text_of(const Tensor& tensor) {
  return to_string(tensor.shape) +
         std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
}
void expect_equal(const RowsFile& a, const RowsFile& b) {
  EXPECT_EQ(a.model_path, b.model_path);
  EXPECT_EQ(a.prompt_sha256, b.prompt_sha256);
  EXPECT_EQ((std::vector<int64_t>{a.tokens, a.q_heads, a.kv_heads, a.dim_k, a.dim_v, a.q_sample_stride}),
            (std::vector<int64_t>{b.tokens, b.q_heads, b.kv_heads, b.dim_k, b.dim_v, b.q_sample_stride}));
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (const auto& [id, layer] : b.layers) {
    const RowsLayer& other = a.layers.at(id);
    EXPECT_EQ(other.k.dtype, layer.k.dtype);
    EXPECT_TRUE(text_of(other.k) == text_of(layer.k)) << id;
    EXPECT_TRUE(text_of(other.v) == text_of(layer.v)) << id;
    EXPECT_TRUE(text_of(other.q_samples) == text_of(layer.q_samples)) << id;
    EXPECT_EQ(other.positions, layer.positions);
    EXPECT_EQ(other.scale, layer.scale);
  }
}

class RowsOfRanks : public testing::Test {
 protected:
  void SetUp() override {
    rows_ = rows_of_raw_dump(raw_dump(folder_ / "raw", {70, 51}));
    rows_.model_path = "toy";
    rows_.prompt_sha256 = "5e3a";
    rows_.layers.at(3).scale = 0.3;
    write_rows(good_, rows_);
  }
  fs::path half(int rank, const Change& then = {}) {
    const fs::path path = folder_ / fmt::format("rank{}.{}.pt", rank, count_++);
    change(good_, path, [&](PtDict& file) {
      file.set("tp_rank", pt(int64_t{rank}));
      file.set("tp_size", pt(int64_t{2}));
      file.set("local_kv_heads", pt(int64_t{2}));
      file.set("q_head_offset", pt(int64_t{4 * rank}));
      for (auto& [id, value] : dict_in(file, "layers").items) {
        for (const auto& [name, heads] : {std::pair{"k", 4}, {"v", 4}, {"q_samples", 8}}) {
          const Tensor& all = as_dict(value).find(name)->tensor(name);
          as_dict(value).set(name, pt(heads_of(all, all.shape[0], heads, rank * heads / 2, heads / 2)));
        }
      }
      if (then) then(file);
    });
    return path;
  }
  void damaged(const Change& how, const std::string& part) {
    change(good_, folder_ / "bad.pt", how);
    expect_said(message_of<std::runtime_error>([&] { read_rows({folder_ / "bad.pt"}); }), part);
  }
  static Change replaced(const char* name, PtValue value) {
    return [=](PtDict& file) { dict_in(dict_in(file, "layers"), int64_t{7}).set(name, value); };
  }
  TempDir folder_;
  const fs::path good_ = folder_ / rows_file_name();
  RowsFile rows_;
  int count_ = 0;
};

TEST_F(RowsOfRanks, HasTheKeysOfTheCalibrator) {
  EXPECT_EQ(good_.filename(), "oscar_rows_rank0.pt");
  const PtValue root = read_pt(good_);
  const PtDict& file = root.dict("file");
  EXPECT_EQ(names_of(file), (std::vector<std::string>{
                                "format_version", "model_path", "model_revision", "prompt_sha256", "tokens",
                                "tp_rank", "tp_size", "local_kv_heads", "global_kv_heads", "global_q_heads",
                                "head_dim", "v_head_dim", "q_head_offset", "q_sample_stride", "layers"}));
  EXPECT_EQ(file.find("format_version")->integer(""), 1);
  EXPECT_EQ(file.find("q_sample_stride")->integer(""), 32);
  const PtDict& layer = file.find("layers")->dict("").find(7)->dict("");
  EXPECT_EQ(names_of(layer),
            (std::vector<std::string>{"k", "v", "q_samples", "positions", "q_scaling", "count"}));
  expect(layer.find("k")->tensor(""), DType::BF16, {121, 4, 16}, "k");
  expect(layer.find("v")->tensor(""), DType::BF16, {121, 4, 12}, "v");
  expect(layer.find("q_samples")->tensor(""), DType::F32, {4, 8, 16}, "q_samples");
  expect(layer.find("positions")->tensor(""), DType::I32, {121}, "positions");
  EXPECT_EQ(layer.find("q_scaling")->kind(), "None");
  EXPECT_EQ(layer.find("count")->integer(""), 121);
  load_in_torch(
      good_,
      "y = x['layers'][3]\nassert y['k'].dtype == torch.bfloat16 and y['q_samples'].shape == (4, 8, 16)\n"
      "assert y['positions'].dtype == torch.int32 and y['q_scaling'] == 0.3\n");
}

TEST_F(RowsOfRanks, RoundTripOfEveryDtype) {
  expect_equal(read_rows({good_}), rows_);
  for (const DType dtype : {DType::F16, DType::F32}) {
    const auto values = rows_.layers.at(7).v.floats();
    std::vector<std::byte> bytes(values.size() * info(dtype).size());
    from_float(dtype, values.data(), values.size(), bytes.data());
    rows_.layers.at(7).v = make_tensor(dtype, {121, 4, 12}, std::move(bytes));
    write_rows(good_, rows_);
    expect_equal(read_rows({good_}), rows_);
  }
}

TEST_F(RowsOfRanks, RanksAreSlicesOfTheHeads) {
  const auto a = half(0), b = half(1);
  expect_equal(read_rows({b, a}), rows_);
  const auto refused = [&](const std::vector<fs::path>& paths, const std::string& part) {
    expect_said(message_of<std::invalid_argument>([&] { read_rows(paths); }), part);
  };
  refused({a}, "rank 1 of 2 is missing");
  refused({a, b, b}, "are both rank 1 of 2");
  refused({a, half(1, [](PtDict& file) { file.set("prompt_sha256", pt("0")); })},
          "not of one run: prompt_sha256 is '5e3a'");
  const auto damaged_rank = [&](const Change& how, const std::string& part) {
    expect_said(message_of<std::runtime_error>([&] { read_rows({a, half(1, how)}); }), part);
  };
  damaged_rank([](PtDict& file) { file.set("q_head_offset", pt(int64_t{0})); },
               "q_head_offset: expected 4 to 4, found 0");
  damaged_rank([](PtDict& file) { file.set("q_sample_stride", pt(int64_t{31})); },
               "q_sample_stride: 32 in rank 0, 31 here");
  damaged_rank(replaced("positions", pt(make_tensor({121}, std::vector<int32_t>(121)))),
               "layer 7: positions are not those of rank 0");
  damaged_rank(replaced("k", pt(make_tensor({121, 2, 16}, std::vector<float>(121 * 32)))),
               "layer 7: k: BF16 [121, 2, 16] in one rank, F32 [121, 2, 16] in another");
}

TEST_F(RowsOfRanks, RefusesLies) {
  for (const char* name : {"k", "v", "q_samples", "positions"})
    damaged([=](PtDict& file) { remove(dict_in(dict_in(file, "layers"), int64_t{7}), name); },
            fmt::format("bad.pt: layer 7: '{}' is missing", name));
  damaged([](PtDict& file) { remove(file, "q_sample_stride"); }, "'q_sample_stride' is missing");
  damaged([](PtDict& file) { file.set("q_sample_stride", pt(int64_t{0})); }, "expected 1 to");
  damaged([](PtDict& file) { file.set("q_sample_stride", pt(int64_t{16})); },
          "layer 3: q_samples: expected [8, 8, 16] of floats, found F32 [4, 8, 16]");
  damaged([](PtDict& file) { file.set("tokens", pt(int64_t{120})); },
          "layer 3: k: expected [120, 4, 16] of floats, found BF16 [121, 4, 16]");
  damaged(replaced("v", pt(make_tensor({121, 4, 12}, std::vector<double>(121 * 48)))),
          "layer 7: v: expected BF16, F16 or F32, found F64");
  damaged(replaced("positions", pt(make_tensor({4}, std::vector<int32_t>(4)))),
          "layer 7: positions: expected [121], found [4]");
  damaged(replaced("positions", pt(make_tensor({121}, std::vector<float>(121)))), "positions: expected I32");
  damaged(replaced("positions", pt(make_tensor({121}, std::vector<int32_t>(121, -1)))),
          "positions: -1 is none");
}

TEST_F(RowsOfRanks, WritingChecksWhatItIsGiven) {
  const auto said = [&](const std::function<void(RowsFile&)>& spoil) {
    RowsFile rows = rows_;
    spoil(rows);
    return message_of<std::invalid_argument>([&] { write_rows(folder_ / "x.pt", rows); });
  };
  expect_said(said([](RowsFile& r) { r.layers.clear(); }), "x.pt: 0 layers");
  expect_said(said([](RowsFile& r) { r.tokens = 120; }),
              "layer 3: k: expected BF16, F16 or F32 [120, 4, 16]");
  expect_said(said([](RowsFile& r) { r.layers.at(7).q_samples = r.layers.at(7).k; }),
              "layer 7: q_samples: expected F32 [4, 8, 16], found BF16 [121, 4, 16]");
  expect_said(said([](RowsFile& r) { r.layers.at(7).positions.pop_back(); }),
              "positions: expected 121, found 120");
  EXPECT_FALSE(fs::exists(folder_ / "x.pt"));
}

TEST(RowsOfRawDump, SampledQueriesAreThoseOfTheirTokens) {
  const TempDir folder;
  const RowsFile every = rows_of_raw_dump(raw_dump(folder / "raw", {70, 51}), 1),
                 some = rows_of_raw_dump(raw_dump(folder / "raw", {70, 51}), 25);
  const auto all = every.layers.at(7).q_samples.floats(), found = some.layers.at(7).q_samples.floats();
  ASSERT_EQ(some.layers.at(7).q_samples.shape, (Shape{5, 8, 16}));  // tokens 0, 25, 50 of one chunk, 75, 100
  for (size_t s = 0; s < 5; ++s) {
    for (size_t i = 0; i < 128; ++i) ASSERT_EQ(found[s * 128 + i], all[s * 25 * 128 + i]) << s;
  }
  // The dump's own bits.
  const auto k = read_pt(folder / "raw" / "layer_7" / "k" / "2.pt").tensor("k").floats();
  const auto joined = every.layers.at(7).k.floats();
  EXPECT_TRUE(std::ranges::equal(k, std::span(joined).subspan(70 * 64)));
  EXPECT_EQ(every.layers.at(3).k.dtype, DType::BF16);
}

TEST(RowsOfRawDump, SequencesAreThoseOfTheDump) {
  const TempDir folder;
  const auto lengths = [](const RowsFile& rows) { return sequence_lengths(rows.layers.at(3).positions); };
  EXPECT_EQ(lengths(rows_of_raw_dump(raw_dump(folder / "a", {70, 51}))),
            (std::vector<int64_t>{60, 10, 41, 10}));
  EXPECT_EQ(lengths(rows_of_raw_dump(raw_dump(folder / "b", {70, 51}, false))),
            (std::vector<int64_t>{70, 51}));
  EXPECT_EQ(sequence_lengths({0, 1, 2, 0, 1, 7, 8, 8}), (std::vector<int64_t>{3, 2, 2, 1}));
  EXPECT_TRUE(sequence_lengths({}).empty());
  RawDump dump = raw_dump(folder / "a", {70, 51});
  EXPECT_THROW(rows_of_raw_dump(dump, 0), std::invalid_argument);
  dump.sequence_lengths = {121, 1};
  expect_said(message_of<std::runtime_error>([&] { rows_of_raw_dump(dump); }),
              "seq_lens/ count 122 tokens, the chunks of layer 3 have 121");
}

TEST(StatisticsOfRows, OfEveryQueryAreThoseOfTheRawDump) {
  const TempDir folder;
  const RawDump dump = raw_dump(folder / "raw", {300, 41});
  const MergedStatistics found = statistics_of_rows(rows_of_raw_dump(dump, 1), 2);
  EXPECT_EQ(found.header.provenance.sequence_lengths, (std::vector<int64_t>{290, 10, 31, 10}));
  EXPECT_EQ(found.header.provenance.tokens, 341);
  EXPECT_TRUE(found.notes.empty());
  for (const int id : {3, 7}) {
    const LayerSums expected = read_raw_layer(dump, id).sums, &sums = found.layers.at(id).sums;
    EXPECT_TRUE(sums.shape() == expected.shape());
    EXPECT_EQ(sums.tokens, 341);
    for (const auto& sum : sum_table()) {
      double norm = 0;
      for (const double x : expected.values(sum.sum)) norm += x * x;
      if (norm > 0)
        EXPECT_LT(relative_error(sums.values(sum.sum), expected.values(sum.sum)), 1e-6) << sum.name;
      else
        EXPECT_TRUE(std::ranges::equal(sums.values(sum.sum), expected.values(sum.sum))) << sum.name;
    }
  }
}

TEST(StatisticsOfRows, OfSampledQueriesAreScaledToTheTokens) {
  const TempDir folder;
  const RowsFile rows = rows_of_raw_dump(raw_dump(folder / "raw", {300, 41}), 32);  // 11 samples
  const MergedStatistics found = statistics_of_rows(rows);
  expect_said(found.notes.at(0),
              "every 32-th token's: qqt and sst-proxy are estimates from 11 of 341 tokens");
  const LayerSums& sums = found.layers.at(7).sums;
  const auto q = rows.layers.at(7).q_samples.doubles();
  Matrix expected = Matrix::Zero(16, 16);  // KV head 2 is shared by query heads 4 and 5
  for (int s = 0; s < 11; ++s) {
    for (const int j : {4, 5}) {
      const Vector row = ConstVectorMap(q.data() + (s * 8 + j) * 16, 16);
      expected += row * row.transpose();
    }
  }
  EXPECT_LT((sums.matrix(Sum::qq, 2) - expected * (341.0 / 11)).norm(),
            1e-5 * sums.matrix(Sum::qq, 2).norm());
  EXPECT_LT((find_target("qqt").of_head(sums, 2) - expected / 22).norm(), 1e-5 * expected.norm() / 22);
  // The second pass weights with this estimate.
  EXPECT_NEAR(sums.scalar(Sum::proxy_weight, 2) / (expected / 22).cwiseProduct(sums.matrix(Sum::kk, 2)).sum(),
              1, 1e-5);
}

}  // namespace
}  // namespace oscar::test
