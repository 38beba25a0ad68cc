// A whole run over a toy model: its sums against brute force over T x T probabilities, shards against one
// pass, and an interrupted run against an uninterrupted one.
#include "libdump/dump.h"

#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

struct ToyRun {
  test::TempDir dir;
  std::filesystem::path model = dir / "toy.gguf";
  SequenceSet sequences;
  DumpOptions options;

  ToyRun() {
    test::write_gguf(model, test::toy_model());
    const auto vocabulary = open_model(model, Precision::Float32)->config().vocabulary;
    for (int s = 0; s < 5; ++s) sequences.calibration.push_back(ids(90 + 7 * s, s, vocabulary));
    sequences.probes.push_back(ids(70, 9, vocabulary));
    options.windows = {8, 16};
    options.rows = 50;
    options.deterministic = true;
  }
  static std::vector<int32_t> ids(int count, int seed, int vocabulary) {
    std::vector<int32_t> out;
    for (int i = 0; i < count; ++i) out.push_back((i * i * 31 + seed * 977 + i) % vocabulary);
    return out;
  }
  void dump_to(const std::filesystem::path& path, const SequenceSet& set, const DumpOptions& how,
               const std::function<void(const DumpProgress&)>& progress = {}) const {
    const auto opened = open_model(model, how.precision);
    dump(*opened, set, describe(*opened, nullptr, "as given", set, how), how, path, progress);
  }
};

// The sums of one KV head from every row, in double and with the whole matrix of probabilities. `w_o` is
// (hidden, Hq Dv).
struct BruteForce {
  double u = 0, w = 0, mass = 0, entropy = 0, sink_mass = 0, out = 0, x = 0;
  Matrix qq, qq_mass, ukk, wvv, oo, qq_out, xkk;
  Vector uk, wv, xk;

  void add(const AttentionRows& r, int head, const Windows& windows, const Matrix& w_o) {
    const LayerShape& s = *r.shape;
    const int d = s.dim_k;
    if (qq.size() == 0) {
      for (Matrix* m : {&qq, &qq_mass, &ukk, &wvv, &oo, &qq_out, &xkk}) *m = Matrix::Zero(d, d);
      uk = wv = xk = Vector::Zero(d);
    }
    const auto row = [&](const float* x, int64_t t, int heads, int h) {
      return Eigen::Map<const Eigen::VectorXf>(x + (t * heads + h) * d, d).cast<double>().eval();
    };
    for (int j = head * s.group(); j < (head + 1) * s.group(); ++j) {
      for (int64_t t = 0; t < r.tokens; ++t) {
        const Vector q = row(r.q, t, s.q_heads, j);
        Vector p(t + 1);
        for (int64_t k = 0; k <= t; ++k) p[k] = s.scale * q.dot(row(r.k, k, s.kv_heads, head));
        p = (p.array() - p.maxCoeff()).exp();
        p /= p.sum();
        Vector o = Vector::Zero(d);
        double m = 0;
        for (int64_t k = 0; k <= t; ++k) {
          const Vector key = row(r.k, k, s.kv_heads, head), value = row(r.v, k, s.kv_heads, head);
          o += p[k] * value;
          entropy -= p[k] > 0 ? p[k] * std::log(p[k]) : 0;
          if (k < windows.sink) sink_mass += p[k];
          if (k < windows.sink || k > t - windows.recent) continue;
          m += p[k];
          u += p[k];
          w += p[k] * p[k];
          uk += p[k] * key;
          wv += p[k] * p[k] * value;
          ukk += p[k] * key * key.transpose();
          wvv += p[k] * p[k] * value * value.transpose();
        }
        double a = 0;
        for (int64_t k = windows.sink; k <= t - windows.recent; ++k) {
          const Vector key = row(r.k, k, s.kv_heads, head), value = row(r.v, k, s.kv_heads, head);
          const double share = p[k] * p[k] * (w_o.middleCols(j * d, d) * (value - o)).squaredNorm();
          a += share;
          xk += share * key;
          xkk += share * key * key.transpose();
        }
        out += a;
        x += a;
        qq_out += a * q * q.transpose();
        mass += m;
        qq += q * q.transpose();
        qq_mass += m * q * q.transpose();
        oo += o * o.transpose();
      }
    }
  }
};

double error(const Eigen::Ref<const Matrix>& a, const Eigen::Ref<const Matrix>& b) {
  return (a - b).norm() / b.norm();
}

TEST(Dump, SumsAgreeWithBruteForce) {
  const ToyRun run;
  run.dump_to(run.dir / "stats.h5", run.sequences, run.options);
  const StatisticsReader reader(run.dir / "stats.h5");
  EXPECT_EQ(reader.header().probe_ids, run.sequences.probes);

  const auto model = open_model(run.model, Precision::Float32);
  Decoder decoder(*model, run.sequences.calibration, {1, true});
  while (!decoder.done()) {
    const int layer = decoder.layer();
    const LayerStatistics statistics = reader.layer(layer);
    const LayerSums& sums = statistics.sums;
    std::vector<BruteForce> expected(static_cast<size_t>(sums.shape().kv_heads));
    const LayerShape& s = sums.shape();
    const int64_t hidden = model->config().hidden, width = int64_t{s.q_heads} * s.dim_v;
    const at::Tensor weight =
        model->weights().load("model.layers." + std::to_string(layer) + ".self_attn.o_proj.weight", {hidden, width});
    using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Matrix w_o = Eigen::Map<const Floats>(weight.const_data_ptr<float>(), hidden, width).cast<double>();
    decoder.run_layer([&](int64_t, const AttentionRows& rows) {
      for (int h = 0; h < rows.shape->kv_heads; ++h)
        expected[static_cast<size_t>(h)].add(rows, h, run.options.windows, w_o);
    });
    for (int h = 0; h < sums.shape().kv_heads; ++h) {
      const BruteForce& b = expected[static_cast<size_t>(h)];
      EXPECT_NEAR(sums.scalar(Sum::u, h), b.u, 1e-5 * b.u);
      EXPECT_NEAR(sums.scalar(Sum::w, h), b.w, 1e-5 * b.w);
      EXPECT_NEAR(sums.scalar(Sum::mass, h), b.mass, 1e-5 * b.mass);
      EXPECT_NEAR(sums.scalar(Sum::entropy, h), b.entropy, 1e-5 * b.entropy);
      EXPECT_NEAR(sums.scalar(Sum::sink_mass, h), b.sink_mass, 1e-5 * b.sink_mass);
      EXPECT_LE(error(sums.matrix(Sum::qq, h), b.qq), 1e-5);
      EXPECT_LE(error(sums.matrix(Sum::oo, h), b.oo), 1e-5);
      EXPECT_LE(error(sums.matrix(Sum::qq_mass, h), b.qq_mass), 1e-5);
      EXPECT_LE(error(sums.matrix(Sum::ukk, h), b.ukk), 1e-5);
      EXPECT_LE(error(sums.matrix(Sum::wvv, h), b.wvv), 1e-5);
      EXPECT_LE(error(sums.row(Sum::uk, h), b.uk), 1e-5);
      EXPECT_LE(error(sums.row(Sum::wv, h), b.wv), 1e-5);
      EXPECT_NEAR(sums.scalar(Sum::out, h), b.out, 1e-5 * b.out);
      EXPECT_NEAR(sums.scalar(Sum::x, h), b.x, 1e-5 * b.x);
      EXPECT_LE(error(sums.matrix(Sum::qq_out, h), b.qq_out), 1e-5);
      EXPECT_LE(error(sums.matrix(Sum::xkk, h), b.xkk), 1e-5);
      EXPECT_LE(error(sums.row(Sum::xk, h), b.xk), 1e-5);
      Matrix metric = Matrix::Zero(s.dim_v, s.dim_v);
      for (int j = h * s.group(); j < (h + 1) * s.group(); ++j) {
        const Matrix slice = w_o.middleCols(j * s.dim_v, s.dim_v);
        metric += slice.transpose() * slice;
      }
      EXPECT_LE(error(statistics.value_metric[static_cast<size_t>(h)], metric), 1e-5);
    }
  }
}

// The importances of sampled rows are those whose sums the file has: all rows of a run that keeps them all.
TEST(Dump, SampledRowsHaveTheirImportances) {
  ToyRun run;
  run.options.rows = 100000;
  run.dump_to(run.dir / "stats.h5", run.sequences, run.options);
  const StatisticsReader reader(run.dir / "stats.h5");
  const LayerSums sums = reader.layer(1).sums;
  const SampledRows rows = reader.rows(1);
  ASSERT_EQ(rows.count(), sums.tokens);
  const int heads = sums.shape().kv_heads;
  for (const auto& [values, sum] : {std::pair(&rows.u, Sum::u), {&rows.w, Sum::w}, {&rows.x, Sum::x}}) {
    ASSERT_EQ(values->size(), static_cast<size_t>(rows.count() * heads));
    for (int h = 0; h < heads; ++h) {
      double total = 0;
      for (size_t i = static_cast<size_t>(h); i < values->size(); i += static_cast<size_t>(heads))
        total += (*values)[i];
      EXPECT_NEAR(total / sums.scalar(sum, h), 1, 1e-6);
    }
  }

  run.options.scores = false;
  run.dump_to(run.dir / "without.h5", run.sequences, run.options);
  EXPECT_TRUE(StatisticsReader(run.dir / "without.h5").rows(1).x.empty());
}

TEST(Dump, ShardsMergeToTheSumsOfOneRun) {
  const ToyRun run;
  SequenceSet first, second;
  first.calibration = {run.sequences.calibration.begin(), run.sequences.calibration.begin() + 2};
  second.calibration = {run.sequences.calibration.begin() + 2, run.sequences.calibration.end()};
  run.dump_to(run.dir / "all.h5", {run.sequences.calibration, {}}, run.options);
  run.dump_to(run.dir / "a.h5", first, run.options);
  run.dump_to(run.dir / "b.h5", second, run.options);
  const MergedStatistics merged = read_merged({run.dir / "a.h5", run.dir / "b.h5"});
  const StatisticsReader whole(run.dir / "all.h5");
  for (const auto& [layer, statistics] : merged.layers) {
    const LayerSums one = whole.layer(layer).sums;
    EXPECT_EQ(statistics.sums.tokens, one.tokens);
    for (const SumInfo& info : sum_table()) {
      if (info.sum == Sum::vv_proxy || info.sum == Sum::proxy_weight)
        continue;  // weighted by each shard's own Sigma_Q
      EXPECT_LE(test::relative_error(statistics.sums.values(info.sum), one.values(info.sum)), 1e-12)
          << info.name;
    }
  }
}

TEST(Dump, ThreadsDoNotChangeTheBytes) {
  const ToyRun run;
  DumpOptions one = run.options, three = run.options;
  one.threads = 1;
  three.threads = 3;
  run.dump_to(run.dir / "one.h5", run.sequences, one);
  run.dump_to(run.dir / "three.h5", run.sequences, three);
  EXPECT_TRUE(test::read(run.dir / "one.h5") == test::read(run.dir / "three.h5"));
}

TEST(Dump, AnInterruptedRunResumesToTheSameBytes) {
  const ToyRun run;
  run.dump_to(run.dir / "whole.h5", run.sequences, run.options);
  const auto stop = [](const DumpProgress& p) {
    if (p.layer == 1 && p.tokens_done > p.tokens_total / 2) throw std::runtime_error("pulled plug");
  };
  EXPECT_THROW(run.dump_to(run.dir / "cut.h5", run.sequences, run.options, stop), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(run.dir / "cut.h5"));
  EXPECT_TRUE(std::filesystem::exists(run.dir / "cut.h5.partial" / "layer_0000.h5"));
  EXPECT_THROW(run.dump_to(run.dir / "cut.h5", run.sequences, run.options), std::invalid_argument)
      << "neither --resume nor --restart";

  DumpOptions resume = run.options, other = run.options;
  resume.resume = other.resume = true;
  other.seed = 7;
  EXPECT_THROW(run.dump_to(run.dir / "cut.h5", run.sequences, other), std::invalid_argument)
      << "another run's options";
  run.dump_to(run.dir / "cut.h5", run.sequences, resume);
  EXPECT_TRUE(test::read(run.dir / "cut.h5") == test::read(run.dir / "whole.h5"));
  EXPECT_FALSE(std::filesystem::exists(run.dir / "cut.h5.partial"));
}

TEST(Dump, HiddenStatesAreRestoredExactly) {
  const ToyRun run;
  const auto model = open_model(run.model, Precision::Float32);
  Decoder through(*model, run.sequences.calibration, {2, true}),
      restored(*model, run.sequences.calibration, {2, true});
  through.run_layer({});
  through.save(run.dir / "hidden");
  restored.restore(run.dir / "hidden", 1);
  while (!through.done()) through.run_layer({});
  while (!restored.done()) restored.run_layer({});
  for (size_t i = 0; i < through.hidden().size(); ++i)
    EXPECT_TRUE(through.hidden()[i].equal(restored.hidden()[i]));

  Decoder fewer(*model, {run.sequences.calibration[0]}, {2, true});
  EXPECT_THROW(fewer.restore(run.dir / "hidden", 1), std::runtime_error);
}

TEST(Dump, ASampleOfQueriesEstimatesTheSums) {
  const ToyRun run;
  DumpOptions half = run.options;
  half.score_queries = 0.5;
  run.dump_to(run.dir / "all.h5", run.sequences, run.options);
  run.dump_to(run.dir / "half.h5", run.sequences, half);
  const LayerSums all = StatisticsReader(run.dir / "all.h5").layer(0).sums,
                  some = StatisticsReader(run.dir / "half.h5").layer(0).sums;
  EXPECT_EQ(all.score_queries, all.tokens);
  const double share = static_cast<double>(some.score_queries) / static_cast<double>(all.score_queries);
  EXPECT_NEAR(share, 0.5, 0.1);
  for (const Sum sum : {Sum::u, Sum::x, Sum::out})
    EXPECT_NEAR(some.scalar(sum, 0) / all.scalar(sum, 0), share, 0.1);
}

}  // namespace
}  // namespace oscar
