// oscar_moments_rank<r>.pt: what is written is what the calibrator writes, and a fit from it is the fit of
// the statistics.
#include "libcalib/artifacts/moments_file.h"

#include "libcalib/artifacts/raw_dump.h"
#include "libcalib/compare.h"
#include "libcalib/targets.h"
#include "tests/calib/pt_support.h"

namespace oscar::test {
namespace {

constexpr int kHeads = 4;  // KV heads, of 8 query heads

std::map<int, LayerStatistics> layers(int64_t tokens = 100) {
  std::map<int, LayerStatistics> all;
  for (const int id : {3, 7}) {
    auto shape = shape_of(id, 2 * kHeads, kHeads, 16, 12);
    shape.scale = 0.3;
    all[id] = statistics_of(shape, tokens, static_cast<uint64_t>(id));
  }
  return all;
}
Provenance provenance() {
  Provenance p;
  p.model_name = "toy";
  p.text_digest = "5e3a";
  return p;
}
double difference(const Matrix& a, const Matrix& b) {
  return (a - b).norm() / b.norm();
}

class MomentsFile : public testing::Test {
 protected:
  void SetUp() override { write_moments(good_, provenance(), layers()); }
  // One rank of two, with half of the heads.
  fs::path half(int rank, const Change& then = {}) {
    const fs::path path = folder_ / fmt::format("rank{}.{}.pt", rank, count_++);
    change(good_, path, [&](PtDict& file) {
      file.set("tp_rank", pt(int64_t{rank}));
      file.set("tp_size", pt(int64_t{2}));
      file.set("local_kv_heads", pt(int64_t{kHeads / 2}));
      for (auto& [id, value] : dict_in(file, "layers").items) {
        for (const char* name : {"M_q", "k_sum", "M_k", "S_v"}) {
          const Tensor& all = as_dict(value).find(name)->tensor(name);
          as_dict(value).set(name, pt(heads_of(all, 1, kHeads, rank * kHeads / 2, kHeads / 2)));
        }
      }
      if (then) then(file);
    });
    return path;
  }
  void refused(const std::vector<fs::path>& paths, const std::string& part) {
    expect_said(message_of<std::invalid_argument>([&] { read_moments(paths); }), part);
  }
  void damaged(const Change& how, const std::string& part) {
    change(good_, folder_ / "bad.pt", how);
    const auto said = message_of<std::runtime_error>([&] { read_moments({folder_ / "bad.pt"}); });
    expect_said(said, part);
    expect_said(said, "bad.pt");
  }
  static Change in_layer(int64_t id, const Change& how) {
    return [=](PtDict& file) { how(dict_in(dict_in(file, "layers"), id)); };
  }
  TempDir folder_;
  const fs::path good_ = folder_ / moments_file_name();
  int count_ = 0;
};

TEST_F(MomentsFile, HasTheKeysOfTheCalibrator) {
  EXPECT_EQ(good_.filename(), "oscar_moments_rank0.pt");
  const PtValue root = read_pt(good_);
  const PtDict& file = root.dict("file");
  EXPECT_EQ(names_of(file),
            (std::vector<std::string>{"format_version", "model_path", "model_revision", "prompt_sha256",
                                      "tokens", "tp_rank", "tp_size", "local_kv_heads", "global_kv_heads",
                                      "global_q_heads", "head_dim", "v_head_dim", "layers"}));
  EXPECT_EQ(file.find("format_version")->integer(""), 2);
  EXPECT_EQ(file.find("model_path")->text(""), "toy");
  EXPECT_EQ(file.find("model_revision")->kind(), "None");
  EXPECT_EQ(file.find("prompt_sha256")->text(""), "5e3a");
  EXPECT_EQ(file.find("global_q_heads")->integer(""), 8);
  EXPECT_EQ(file.find("v_head_dim")->integer(""), 12);
  const PtDict& layer = file.find("layers")->dict("").find(7)->dict("");
  EXPECT_EQ(names_of(layer),
            (std::vector<std::string>{"M_q", "k_sum", "M_k", "S_v", "rho", "q_scaling", "count"}));
  EXPECT_EQ(layer.find("rho")->kind(), "None");
  EXPECT_EQ(layer.find("count")->integer(""), 100);
  EXPECT_EQ(std::get<double>(layer.find("q_scaling")->value), 0.3);
  // A mean of rows, a sum, and a ratio.
  const LayerSums sums = layers().at(7).sums;
  const auto head = [&](const char* name, int d) {
    const Tensor& tensor = layer.find(name)->tensor(name);
    expect(tensor, DType::F64, {kHeads, d, d}, name);
    const auto values = tensor.doubles();
    return Matrix(ConstMatrixMap(values.data() + 2 * d * d, d, d));
  };
  EXPECT_LT(difference(head("M_q", 16), sums.matrix(Sum::qq, 2) / 200), 1e-15);
  EXPECT_LT(difference(head("M_k", 16), sums.matrix(Sum::kk, 2)), 1e-15);
  EXPECT_LT(difference(head("S_v", 12), sums.matrix(Sum::vv_proxy, 2) / sums.scalar(Sum::proxy_weight, 2)),
            1e-15);
  load_in_torch(good_,
                "assert x['layers'][3]['M_q'].dtype == torch.float64 and x['layers'][3]['rho'] is None\n"
                "assert x['layers'][7]['k_sum'].shape == (4, 16) and x['tp_size'] == 1\n");
}

TEST_F(MomentsFile, RoundTrip) {
  const MergedStatistics found = read_moments({good_});
  EXPECT_EQ(found.header.provenance.model_name, "toy");
  EXPECT_EQ(found.header.provenance.text_digest, "5e3a");
  EXPECT_EQ(found.header.provenance.tokens, 100);
  EXPECT_EQ(found.header.provenance.layers_total, 8);
  EXPECT_FALSE(found.header.has_scores);
  const auto expected = layers();
  ASSERT_EQ(found.layers.size(), expected.size());
  ASSERT_EQ(found.header.layers.size(), expected.size());
  for (const auto& [id, layer] : expected) {
    const LayerSums &a = found.layers.at(id).sums, &b = layer.sums;
    EXPECT_TRUE(a.shape() == b.shape()) << id;
    EXPECT_EQ(a.tokens, b.tokens);
    for (const Sum sum : {Sum::qq, Sum::kk, Sum::k_sum})
      EXPECT_LT(relative_error(a.values(sum), b.values(sum)), 1e-12) << id;
    for (int h = 0; h < kHeads; ++h) {
      for (const char* name : {"qqt", "ktk", "sst-proxy"}) {
        const auto& target = find_target(name);
        EXPECT_LT(difference(target.of_head(a, h), target.of_head(b, h)), 1e-12)
            << name << ' ' << id << ' ' << h;
      }
    }
  }
}

TEST_F(MomentsFile, FitIsThatOfTheStatistics) {
  for (const char* method : {"oscar-proxy", "oscar-proxy:granularity=head"}) {
    const auto a = fit({layers(), {}}, parse_method(method), {}).codes,
               b = fit({read_moments({good_}).layers, {}}, parse_method(method), {}).codes;
    for (const Side side : {Side::K, Side::V}) {
      const auto one = rotation_set(side_of(a, side)), other = rotation_set(side_of(b, side));
      EXPECT_EQ(one.objective, other.objective);
      EXPECT_TRUE(compare(one, other).equal(1e-10)) << method << side_name(side);
      for (const auto& [id, layer] : one.layers) {
        for (size_t h = 0; h < layer.rotation.size(); ++h)
          EXPECT_LT((layer.rotation[h] - other.layers.at(id).rotation[h]).cwiseAbs().maxCoeff(), 1e-7);
      }
    }
  }
}

// The sums of sst-proxy are those that a second pass over keys and values makes.
TEST_F(MomentsFile, SumsAreThoseOfARawDump) {
  const auto shape = shape_of(3, 2 * kHeads, kHeads, 16, 12);
  const Rows r = rows_of(shape, 200, 1);
  RawDumpWriter writer(folder_ / "raw", DType::F32);
  writer.chunk(3, 1, shape, r.q.data(), r.k.data(), r.v.data(), 200);
  writer.lengths(1, {200});
  const LayerStatistics raw = read_raw_layer(open_raw_dump(folder_ / "raw"), 3);
  write_moments(good_, {}, {{3, raw}});
  const LayerSums found = read_moments({good_}).layers.at(3).sums;
  EXPECT_TRUE(found.shape() == raw.sums.shape());
  for (const Sum sum : {Sum::qq, Sum::kk, Sum::k_sum, Sum::vv_proxy, Sum::proxy_weight})
    EXPECT_LT(relative_error(found.values(sum), raw.sums.values(sum)), 1e-6);
}

TEST_F(MomentsFile, RanksAreSlicesOfTheHeads) {
  const LayerSums whole = read_moments({good_}).layers.at(7).sums;
  const auto a = half(0), b = half(1);
  for (const auto& paths : {std::vector{a, b}, std::vector{b, a}}) {
    const LayerSums found = read_moments(paths).layers.at(7).sums;
    EXPECT_TRUE(found.shape() == whole.shape());
    for (const auto& sum : sum_table())
      EXPECT_TRUE(std::ranges::equal(found.values(sum.sum), whole.values(sum.sum))) << sum.name;
  }
}

TEST_F(MomentsFile, RefusesRanksByName) {
  const auto a = half(0), b = half(1), again = half(1);
  refused({}, "no file was given");
  refused({b}, "rank 0 of 2 is missing: 1 of 2 files were given");
  refused({a}, "rank 1 of 2 is missing");
  refused({a, b, again}, "are both rank 1 of 2");
  const auto foreign = [&](const char* field, PtValue value, const std::string& part) {
    refused({a, half(1, [&](PtDict& file) { file.set(field, value); })}, part);
  };
  foreign("model_path", pt("other"),
          "not of one run: model_path is 'toy' in the first, 'other' in the second");
  foreign("prompt_sha256", pt("0"), "prompt_sha256 is '5e3a' in the first, '0'");
  foreign("tokens", pt(int64_t{99}), "tokens is '100' in the first, '99'");
  foreign("tp_size", pt(int64_t{4}), "tp_size is '2' in the first, '4'");
  foreign("global_kv_heads", pt(int64_t{2}), "global_kv_heads is '4' in the first, '2'");
  foreign("global_q_heads", pt(int64_t{16}), "global_q_heads is '8' in the first, '16'");
  foreign("head_dim", pt(int64_t{32}), "head_dim is '16' in the first, '32'");
  foreign("v_head_dim", pt(int64_t{16}), "v_head_dim is '12' in the first, '16'");
  refused({a, half(1, [](PtDict& file) { dict_in(file, "layers").items.pop_back(); })},
          "layers is '3, 7' in the first, '3' in the second");
}

TEST_F(MomentsFile, RefusesLies) {
  const auto replaced = [](const char* name, PtValue value) {
    return in_layer(7, [=](PtDict& layer) { layer.set(name, value); });
  };
  for (const char* name : {"M_q", "k_sum", "M_k", "S_v", "count"})
    damaged(in_layer(7, [=](PtDict& layer) { remove(layer, name); }),
            fmt::format("layer 7: '{}' is missing", name));
  for (const char* name : {"model_path", "prompt_sha256", "tokens", "tp_rank", "tp_size", "local_kv_heads",
                           "global_kv_heads", "global_q_heads", "head_dim", "v_head_dim", "layers"})
    damaged([=](PtDict& file) { remove(file, name); }, fmt::format("'{}' is missing", name));
  damaged(replaced("M_q", pt(make_tensor({4, 8, 8}, std::vector<double>(256)))),
          "layer 7: M_q: expected [4, 16, 16] of floats, found F64 [4, 8, 8]");
  damaged(replaced("k_sum", pt(make_tensor({4, 16}, std::vector<int64_t>(64)))),
          "layer 7: k_sum: expected [4, 16] of floats, found I64 [4, 16]");
  damaged(replaced("S_v", pt(make_tensor({4, 12, 12}, std::vector<double>(576, NAN)))),
          "layer 7: S_v: not all numbers are finite");
  std::vector<double> skew(4 * 256, 0);
  skew[256 + 1] = 1;
  damaged(replaced("M_k", pt(make_tensor({4, 16, 16}, skew))), "layer 7: M_k: head 1 is no second moment");
  damaged(replaced("count", pt(int64_t{0})), "layer 7: count: expected 1 or more, found 0");
  damaged(replaced("count", pt("many")), "layer 7: count: expected an int, found str");
  damaged(replaced("q_scaling", pt("small")), "layer 7: q_scaling: expected a finite number, found a str");
  damaged([](PtDict& file) { file.set("tp_rank", pt(int64_t{1})); }, "tp_rank: expected 0 to 0, found 1");
  damaged([](PtDict& file) { file.set("global_kv_heads", pt(int64_t{3})); },
          "expected query heads that are a multiple of the KV heads, found 8 and 3");
  damaged([](PtDict& file) { file.set("global_kv_heads", pt(int64_t{8})); },
          "the ranks have 4 KV heads in all, expected global_kv_heads, 8");
  damaged([](PtDict& file) { dict_in(file, "layers").items.clear(); }, "no layers");
  damaged([](PtDict& file) { dict_in(file, "layers").set("last", pt(PtDict{})); },
          "'last' is not a layer id");
}

TEST_F(MomentsFile, ToleratesWhatOthersWrite) {
  change(good_, folder_ / "other.pt", [](PtDict& file) {
    file.set("format_version", pt("next"));
    file.set("model_revision", pt("main"));
    file.set("generation", pt(int64_t{4}));
    auto& items = dict_in(file, "layers").items;
    for (auto& [key, value] : items) {
      key = pt(std::to_string(key.integer("")));
      as_dict(value).set("q_scaling", pt(PtNone{}));
      as_dict(value).set("rho", pt(make_tensor({4, 2, 2}, std::vector<double>(16))));
    }
  });
  const auto found = read_moments({folder_ / "other.pt"});
  EXPECT_EQ(found.layers.at(7).sums.shape().scale, 0.25);
  EXPECT_EQ(found.layers.at(3).sums.tokens, 100);
}

TEST_F(MomentsFile, WritingNeedsTheProxySums) {
  const auto said = [&](std::map<int, LayerStatistics> all) {
    return message_of<std::invalid_argument>([&] { write_moments(folder_ / "x.pt", {}, all); });
  };
  auto all = layers();
  std::ranges::fill(all[7].sums.values(Sum::proxy_weight), 0);
  expect_said(said(all), "layer 7: the statistics have no sst-proxy sums");
  all = layers();
  all[9] = statistics_of(shape_of(9, 8, 2, 16, 12), 100, 1);
  expect_said(said(all), "layer 9 has other heads, dims or tokens than layer 3");
  all[9] = statistics_of(shape_of(9, 8, 4, 16, 12), 90, 1);
  expect_said(said(all), "layer 9 has other heads, dims or tokens than layer 3");
  expect_said(said({}), "no layers");
  EXPECT_FALSE(fs::exists(folder_ / "x.pt"));
}

}  // namespace
}  // namespace oscar::test
