// verify() against a computation in double that knows nothing of tiles, and what must be refused.
#include "libcalib/verify.h"

#include <fmt/format.h>
#include <omp.h>
#include <Eigen/LU>

#include <cmath>
#include <nlohmann/json.hpp>

#include "libcalib/report.h"
#include "libcalib/verify_rows.h"
#include "tests/calib/measure_support.h"

namespace oscar::test {
namespace {

constexpr Windows kWindows{.sink = 8, .recent = 16};
constexpr int64_t kFirst = 40;

SideCodes side(Side which, const char* codec, double clip, const RotationSet* rotation = nullptr) {
  return scalar_codes(which, two_layers(), rotation, find_codec(codec), {.groups = 1, .clip = clip});
}
CacheCodes cache(std::string name, const char* codec, double clip_k, double clip_v,
                 const RotationSet* k = nullptr, const RotationSet* v = nullptr) {
  return {std::move(name), side(Side::K, codec, clip_k, k), side(Side::V, codec, clip_v, v)};
}

// One head's rows in the cache's basis in double, and the packed codes of the float rows.
Matrix in_double(const float* rows, int64_t stride, int64_t n, int dim) {
  Matrix x(n, dim);
  for (int64_t r = 0; r < n; ++r) {
    for (int i = 0; i < dim; ++i) x(r, i) = rows[r * stride + i];
  }
  return x;
}
Matrix mapped(const Matrix& x, const Matrix& map) {
  return map.size() ? Matrix(x * map) : x;
}
// x^ in the model's basis.
Matrix coded(const HeadCode& code, const float* rows, int64_t stride, int64_t n, int dim) {
  std::vector<float> cache(static_cast<size_t>(n * dim)), out(cache.size());
  code.transform.rows(rows, stride, n, dim, cache.data());
  const Vector offset = code.transform.offset(dim);
  for (int64_t i = 0; i < n * dim; ++i) cache[static_cast<size_t>(i)] -= static_cast<float>(offset[i % dim]);
  code.codec->encode(cache.data(), n, dim, code.options)->decode(0, n, out.data());
  for (int64_t i = 0; i < n * dim; ++i) out[static_cast<size_t>(i)] += static_cast<float>(offset[i % dim]);
  const auto& t = code.transform;
  return mapped(in_double(out.data(), dim, n, dim),
                t.inverse.size() ? t.inverse : Matrix(t.forward.transpose()));
}

std::vector<double> softmax(const std::vector<double>& logits) {
  double top = -INFINITY, sum = 0;
  for (const double x : logits) top = std::max(top, x);
  std::vector<double> p;
  for (const double x : logits) p.push_back(std::exp(x - top)), sum += p.back();
  for (auto& x : p) x /= sum;
  return p;
}

double ratio(double error, double power) {
  return error / power;
}

LayerDiagnostics expected(const CacheCodes& row, const LayerShape& shape, const Probe& probe) {
  const int D = shape.dim_k, H = shape.group();
  const int64_t T = probe.tokens;
  LayerDiagnostics d{.layer = shape.layer};
  double n = 0, kl = 0, top1 = 0, logit_error = 0, logit_power = 0, power = 0, error = 0, error_k = 0,
         error_v = 0;
  double mse[2] = {}, code_power[2] = {}, range[2] = {}, elements = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const float* k_rows = probe.k.data() + head * D;
    const float* v_rows = probe.v.data() + head * D;
    const int64_t stride = shape.kv_heads * D;
    const HeadCode &k_code = row.k.of(shape.layer, head), &v_code = row.v.of(shape.layer, head);
    const Matrix k = in_double(k_rows, stride, T, D), v = in_double(v_rows, stride, T, D);
    const Matrix k_codes = coded(k_code, k_rows, stride, T, D), v_codes = coded(v_code, v_rows, stride, T, D);
    const Matrix k_cache = mapped(k, k_code.transform.forward), v_cache = mapped(v, v_code.transform.forward);
    const Vector k_offset = k_code.transform.offset(D), v_offset = v_code.transform.offset(D);
    for (int64_t s = kWindows.sink; s <= T - 1 - kWindows.recent; ++s) {
      for (const auto& [x, y, i] : {std::tuple{&k, &k_codes, 0}, {&v, &v_codes, 1}}) {
        mse[i] += (x->row(s) - y->row(s)).squaredNorm();
        code_power[i] += x->row(s).squaredNorm();
      }
      for (const auto& [x, offset, i] : {std::tuple{&k_cache, &k_offset, 0}, {&v_cache, &v_offset, 1}}) {
        const Vector coded_row = x->row(s).transpose() - *offset;
        range[i] += coded_row.maxCoeff() - coded_row.minCoeff();
      }
      elements += D;
    }
    double head_n = 0, head_kl = 0, head_power = 0, head_error = 0;
    Vector q_power = Vector::Zero(D), o_power = Vector::Zero(D);
    for (int j = 0; j < H; ++j) {
      const Matrix q = in_double(probe.q.data() + (head * H + j) * D, shape.q_heads * D, T, D);
      for (int64_t t = kFirst; t < T; ++t) {
        const int64_t begin = shape.sliding_window ? std::max<int64_t>(0, t - shape.sliding_window + 1) : 0;
        const auto quantised = [&](int64_t s) { return s >= kWindows.sink && s <= t - kWindows.recent; };
        std::vector<double> l, l_codes;
        for (int64_t s = begin; s <= t; ++s) {
          const auto logit = [&](double x) {
            return shape.logit_cap > 0 ? shape.logit_cap * std::tanh(x / shape.logit_cap) : x;
          };
          l.push_back(logit(shape.scale * q.row(t).dot(k.row(s))));
          l_codes.push_back(quantised(s) ? logit(shape.scale * q.row(t).dot(k_codes.row(s))) : l.back());
          logit_error += std::pow(l.back() - l_codes.back(), 2);
          logit_power += std::pow(l.back(), 2);
        }
        if (const float* sinks = shape.sinks_of(head)) {
          l.push_back(sinks[j]);
          l_codes.push_back(sinks[j]);
        }
        auto p = softmax(l), p_codes = softmax(l_codes);
        Vector o = Vector::Zero(D), o_codes = o, o_keys = o, o_values = o;
        double one = 0;
        if (shape.sinks_of(head)) {  // an outcome of the softmax that is no key
          one += p.back() * std::log(p.back() / p_codes.back());
          p.pop_back();
          p_codes.pop_back();
        }
        for (int64_t s = begin; s <= t; ++s) {
          const auto i = static_cast<size_t>(s - begin);
          const Vector exact = v.row(s), code = quantised(s) ? v_codes.row(s) : v.row(s);
          one += p[i] * std::log(p[i] / p_codes[i]);
          o += p[i] * exact;
          o_codes += p_codes[i] * code;
          o_keys += p_codes[i] * exact;
          o_values += p[i] * code;
        }
        kl += one, head_kl += one, n += 1, head_n += 1;
        top1 +=
            std::ranges::max_element(p) - p.begin() == std::ranges::max_element(p_codes) - p_codes.begin();
        power += o.squaredNorm(), head_power += o.squaredNorm();
        error += (o - o_codes).squaredNorm(), head_error += (o - o_codes).squaredNorm();
        error_k += (o - o_keys).squaredNorm();
        error_v += (o - o_values).squaredNorm();
        const auto& kt = k_code.transform;
        q_power += mapped(q.row(t), kt.inverse.size() ? Matrix(kt.inverse.transpose()) : kt.forward)
                       .row(0)
                       .transpose()
                       .cwiseAbs2();
        o_power += mapped(o.transpose(), v_code.transform.forward).row(0).transpose().cwiseAbs2();
      }
    }
    d.head_kl.push_back(head_kl / head_n);
    d.head_output_error.push_back(head_error / head_power);
    d.flatness_k += q_power.maxCoeff() / q_power.mean() / shape.kv_heads;
    d.flatness_v += o_power.maxCoeff() / o_power.mean() / shape.kv_heads;
  }
  d.attention_kl = kl / n;
  d.top1 = top1 / n;
  d.logit_error = ratio(logit_error, logit_power);
  d.output_error = ratio(error, power);
  d.output_error_k = ratio(error_k, power);
  d.output_error_v = ratio(error_v, power);
  d.mse_k = mse[0] / elements, d.mse_v = mse[1] / elements;
  d.snr_k = 10 * std::log10(code_power[0] / mse[0]), d.snr_v = 10 * std::log10(code_power[1] / mse[1]);
  d.range_k = range[0] / (elements / D), d.range_v = range[1] / (elements / D);
  return d;
}

void expect_near(double found, double wanted, const std::string& what) {
  EXPECT_NEAR(found, wanted, 1e-4 * std::max(std::abs(wanted), 1e-3)) << what;
}

// Maps that are not orthogonal, and means: a logit and an output must still be those of the model.
CacheCodes bent(const std::vector<LayerShape>& shapes) {
  CacheCodes codes = cache("bent", "sglang-prefill", .96, .96);
  for (SideCodes* side : {&codes.k, &codes.v}) {
    side->objective = "bent";
    for (const auto& shape : shapes) {
      Matrix forward = random_rotations(shapes, side->side, false, 70).layers.at(shape.layer).rotation[0];
      for (Eigen::Index i = 0; i < forward.cols(); ++i) forward.col(i) *= 1 + 0.2 * static_cast<double>(i);
      auto& transform = side->layers.at(shape.layer)[0].transform;
      transform.forward = forward;
      transform.inverse = forward.inverse();
      transform.mean = Vector::LinSpaced(shape.dim(side->side), -2, 3);
    }
  }
  return codes;
}

TEST(Verify, EqualsTheComputationInDouble) {
  TempDir folder;
  auto shapes = two_layers(/*sliding_window=*/48);
  shapes[0].sink_logits = {1, -2, 6, 0};
  shapes[1].logit_cap = 2.5;
  const StatisticsReader statistics(random_statistics(folder, shapes));
  const auto k = random_rotations(shapes, Side::K, true, 5), v = random_rotations(shapes, Side::V, false, 50);
  const std::vector<CacheCodes> rows{cache("naive", "sglang-prefill", 0, 0),
                                     cache("rotated", "sglang-prefill", .96, .8, &k, &v), bent(shapes)};
  int64_t last = 0;
  const auto report =
      verify(statistics, rows, {.windows = kWindows, .first_query = kFirst, .probes = {0, 1}, .layers = {}},
             [&](int64_t done, int64_t total) {
               EXPECT_EQ(done, ++last);
               EXPECT_EQ(total, 2 * 2 * 3);
             });
  EXPECT_EQ(last, 12);
  ASSERT_EQ(report.rows.size(), 3u);
  EXPECT_TRUE(report.path.starts_with("packed INT2, CPU ")) << report.path;
  EXPECT_EQ(report.probe_tokens, (std::vector<int64_t>{96, 80}));
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto& row = report.rows[r];
    EXPECT_DOUBLE_EQ(row.k.bits, (4 + 8) * 8 / 16.0);
    ASSERT_EQ(row.layers.size(), 2u);
    double mean = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto a = expected(rows[r], shapes[i], statistics.probe(shapes[i].layer, 0));
      const auto b = expected(rows[r], shapes[i], statistics.probe(shapes[i].layer, 1));
      const auto& found = row.layers[i];
      EXPECT_EQ(found.layer, shapes[i].layer);
      for (const auto& info : diagnostic_table()) {
        if (info.name == "alignment") continue;
        expect_near(found.*info.field, (a.*info.field + b.*info.field) / 2,
                    fmt::format("row {}, layer {}: {}", row.name, found.layer, info.name));
      }
      for (size_t h = 0; h < 2; ++h) {
        expect_near(found.head_kl[h], (a.head_kl[h] + b.head_kl[h]) / 2, "head_kl");
        expect_near(found.head_output_error[h], (a.head_output_error[h] + b.head_output_error[h]) / 2,
                    "head_output_error");
      }
      mean += found.attention_kl / 2;
    }
    EXPECT_DOUBLE_EQ(row.mean.attention_kl, mean);
    EXPECT_EQ(row.mean.layer, -1);
  }
}

TEST(Verify, ExactCodesLoseNothing) {
  TempDir folder;
  const auto shapes = two_layers();
  const StatisticsReader statistics(random_statistics(folder, shapes));
  const auto report = verify(statistics, {cache("none", "none", 0, 0), cache("bf16", "bf16", 0, 0)},
                             {.windows = kWindows, .first_query = kFirst, .probes = {0}, .layers = {3}}, {});
  const auto& none = report.rows[0].mean;
  EXPECT_EQ(none.logit_error, 0);
  EXPECT_EQ(none.output_error, 0);
  EXPECT_EQ(none.top1, 1);
  EXPECT_NEAR(none.attention_kl, 0, 1e-12);
  EXPECT_TRUE(std::isinf(none.snr_k));
  EXPECT_EQ(report.rows[0].k.bits, 32);
  const auto& bf16 = report.rows[1].mean;
  EXPECT_GT(bf16.output_error, 0);
  EXPECT_LT(bf16.output_error, 1e-4);
  EXPECT_EQ(report.rows[0].layers.size(), 1u);
  EXPECT_TRUE(to_json(report)["rows"][0]["mean"]["snr_k"].is_null());
}

TEST(Verify, AlignmentOfEqualSubspacesIsOne) {
  TempDir folder;
  auto shapes = two_layers();
  shapes.resize(1);
  auto probe = random_probe(shapes[0], 96, 1);
  // Energy of queries and keys in the first eight channels.
  for (size_t i = 0; i < probe.q.size(); ++i) probe.q[i] *= i % 16 < 8 ? 10.0f : 0.1f;
  for (size_t i = 0; i < probe.k.size(); ++i) probe.k[i] *= i % 16 < 8 ? 10.0f : 0.1f;
  write_statistics(folder / "s.h5", shapes, {{probe}});
  const StatisticsReader statistics(folder / "s.h5");
  const auto report = verify(statistics, {cache("none", "none", 0, 0)},
                             {.windows = kWindows, .first_query = kFirst, .probes = {0}, .layers = {}}, {});
  EXPECT_NEAR(report.rows[0].mean.alignment, 1, 1e-3);
}

TEST(Verify, RefusesARotationThatIsNotOrthogonal) {
  TempDir folder;
  const auto shapes = two_layers();
  const StatisticsReader statistics(random_statistics(folder, shapes));
  const VerifyOptions options{.windows = kWindows, .first_query = kFirst, .probes = {0}, .layers = {}};
  for (const Side broken : {Side::K, Side::V}) {
    auto k = random_rotations(shapes, Side::K, false, 5), v = random_rotations(shapes, Side::V, false, 6);
    auto& set = broken == Side::K ? k : v;
    set.layers.at(3).rotation[0].col(4) *= 1.1;
    try {
      verify(statistics, {cache("mine", "sglang-prefill", 0, 0, &k, &v)}, options, {});
      ADD_FAILURE() << "a bent rotation was taken";
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("row 'mine', layer 3, KV head 0"), std::string::npos) << text;
      EXPECT_NE(text.find("must be orthogonal"), std::string::npos) << text;
    }
  }
}

TEST(Verify, RefusesWhatDoesNotFit) {
  TempDir folder;
  const auto shapes = two_layers();
  const StatisticsReader statistics(random_statistics(folder, shapes));
  const VerifyOptions good{.windows = kWindows, .first_query = kFirst, .probes = {0}, .layers = {}};
  const auto refused = [&](CacheCodes row, VerifyOptions options, const char* part) {
    try {
      verify(statistics, {std::move(row)}, options, {});
      ADD_FAILURE() << "expected: " << part;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const CacheCodes naive = cache("naive", "sglang-prefill", 0, 0);
  auto with = [&](auto change) {
    auto options = good;
    change(options);
    return options;
  };
  refused(naive, with([](auto& o) { o.probes = {}; }), "no probes chosen");
  refused(naive, with([](auto& o) { o.probes = {2}; }), "probe 2: the statistics have 2");
  refused(naive, with([](auto& o) { o.probes = {0, 0}; }), "twice");
  refused(naive, with([](auto& o) { o.first_query = 96; }), "probe 0 has 96 tokens");
  refused(naive, with([](auto& o) { o.layers = {2}; }), "they have 1, 3");
  refused(naive, with([](auto& o) { o.windows = {8, 88}; }), "nothing is quantised");
  EXPECT_NE(unserved_windows(naive, {4, 16}).find("pages of 8 tokens"), std::string::npos);
  EXPECT_EQ(unserved_windows(naive, {8, 16}), "");
  EXPECT_NE(unfitted_windows({64, 256}, {4, 256}).find("dump with --sink 4 --recent 256"), std::string::npos);
  EXPECT_NE(unfitted_windows({64, 256}, {64, 0}).find("windows 64/0"), std::string::npos);
  EXPECT_EQ(unfitted_windows({64, 256}, {64, 1024}), "");
  refused(naive, with([](auto& o) { o.windows = {8, -1}; }), "recent");

  auto k = random_rotations(shapes, Side::K, true, 5);
  refused({"r", naive.k, side(Side::K, "sglang-prefill", 0, &k)}, good, "are for k, they were given for v");
  k.layers.at(1).rotation.push_back(k.layers.at(1).rotation[0]);
  refused({"r", side(Side::K, "sglang-prefill", 0, &k), naive.v}, good, "3 heads, the statistics have 2");
  k.layers.erase(1);
  refused({"r", side(Side::K, "sglang-prefill", 0, &k), naive.v}, good, "have no layer 1");
  k.layers[1].rotation = {Matrix::Identity(32, 32)};
  refused({"r", side(Side::K, "sglang-prefill", 0, &k), naive.v}, good,
          "32 x 32, the statistics have head dim 16");
}

TEST(Verify, NamesTheLayerOfRowsThatAreNotFinite) {
  TempDir folder;
  auto shapes = two_layers();
  shapes.resize(1);
  auto probe = random_probe(shapes[0], 96, 1);
  probe.v[20 * 32 + 3] = NAN;
  write_statistics(folder / "s.h5", shapes, {{probe}});
  const StatisticsReader statistics(folder / "s.h5");
  try {
    verify(statistics, {cache("naive", "sglang-prefill", 0, 0)},
           {.windows = kWindows, .first_query = kFirst, .probes = {0}, .layers = {}}, {});
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 1"), std::string::npos) << error.what();
  }
}

TEST(Verify, HadamardRowsTameALoudChannel) {
  TempDir folder;
  const auto shapes = two_layers();
  const StatisticsReader statistics(random_statistics(folder, shapes));
  auto rows = ScalarRows{shapes, &find_codec("sglang-prefill")}.baselines(.96, .92);
  const auto report = verify(
      statistics, rows, {.windows = kWindows, .first_query = kFirst, .probes = {0, 1}, .layers = {}}, {});
  ASSERT_EQ(report.rows.size(), 4u);
  EXPECT_EQ(report.rows[0].name, "naive");
  EXPECT_EQ(report.rows[3].name, "hadamard+clip");
  EXPECT_LT(report.rows[2].mean.output_error_v, report.rows[0].mean.output_error_v);
  rows.push_back(rows[0]);
  EXPECT_THROW(
      verify(statistics, rows, {.windows = kWindows, .first_query = kFirst, .probes = {0}, .layers = {}}, {}),
      std::invalid_argument);
}

TEST(Verify, TheNumberOfThreadsChangesNothing) {
  TempDir folder;
  const auto shapes = two_layers();
  const StatisticsReader statistics(random_statistics(folder, shapes));
  const auto rows = ScalarRows{shapes, &find_codec("sglang-prefill"), 2}.baselines(.96, .92);
  const int threads = omp_get_max_threads();
  std::vector<std::string> reports;
  for (const int n : {1, 3}) {
    omp_set_num_threads(n);
    reports.push_back(
        to_json(verify(statistics, rows,
                       {.windows = kWindows, .first_query = kFirst, .probes = {0, 1}, .layers = {}}, {}))
            .dump());
  }
  omp_set_num_threads(threads);
  EXPECT_EQ(reports[0], reports[1]);
}

}  // namespace
}  // namespace oscar::test
