// The clip search on rows whose best ratio is known.
#include "libcalib/clip.h"

#include <algorithm>

#include "libcalib/setup.h"
#include "tests/calib/measure_support.h"

namespace oscar::test {
namespace {

const CodecInfo& codec() {
  return find_codec("sglang-prefill");
}
ClipOptions options(std::vector<double> ratios) {
  ClipOptions result;
  result.windows = {.sink = 8, .recent = 16};
  result.queries = 128;
  result.probes = {0};
  result.ratios = std::move(ratios);
  return result;
}
LayerShape shape_of(int dim) {
  return {
      .layer = 2, .q_heads = 2, .kv_heads = 1, .dim_k = dim, .dim_v = dim, .scale = 0.2, .sliding_window = 0};
}

// One channel of the keys is far out and no query looks at it; one of the values is far out in a few rows
// only.
Probe outliers(const LayerShape& shape, int64_t tokens) {
  Probe probe;
  probe.tokens = tokens;
  const auto D = static_cast<size_t>(shape.dim_k), T = static_cast<size_t>(tokens);
  probe.q = normal(T * 2 * D, 1);
  probe.k = normal(T * D, 2);
  probe.v = normal(T * D, 3, 0.1f);
  for (size_t i = 0; i < probe.q.size(); i += D) probe.q[i] = 0;
  for (size_t t = 0; t < T; ++t) probe.k[t * D] = t % 2 ? 60.0f : -60.0f;
  return probe;
}

TEST(Clip, CutsTheOutlierThatNoQueryLooksAt) {
  TempDir folder;
  const auto shape = shape_of(16);
  write_statistics(folder / "s.h5", {shape}, {{outliers(shape, 400)}});
  const StatisticsReader statistics(folder / "s.h5");
  const auto report = search_clip(statistics, nullptr, nullptr, codec(), 1, options({0.1, 0.9}), {});
  // D = 16: index 14 of .9 removes the outlier and nothing else, 1 of .1 nearly everything, 15 of .96
  // nothing.
  EXPECT_EQ(report.k.at(2).best_ratio, 0.9);
  EXPECT_EQ(report.model_k.best_ratio, 0.9);
  EXPECT_LT(report.model_k.best_loss, 0.5 * report.model_k.hand_loss);
  EXPECT_EQ(report.model_k.hand_ratio, 0.96);
  EXPECT_EQ(report.model_k.ratio, (std::vector<double>{0.1, 0.9, 0.96}));
  EXPECT_EQ(report.model_v.ratio,
            (std::vector<double>{0, 0.1, 0.92}));  // .9 and .92 are one index, and off is D - 1
  EXPECT_EQ(report.model_v.hand_ratio, 0.92);
  const std::vector<std::string> notes{
      "k: ratios off, 0.96 clip at the same element of a row; measured once, as 0.96",
      "v: ratios 0.9, 0.92 clip at the same element of a row; measured once, as 0.92"};
  EXPECT_EQ(report.notes, notes);
  EXPECT_EQ(report.objective_k, "identity");
  EXPECT_EQ(report.options.first_query, 24);  // the first with a history
}

TEST(Clip, LeavesRowsOfFourLevelsAlone) {
  TempDir folder;
  const auto shape = shape_of(64);
  Probe probe = outliers(shape, 200);
  for (auto* rows : {&probe.k, &probe.v}) {  // a quarter of the channels in the outer levels
    for (size_t i = 0; i < rows->size(); ++i) (*rows)[i] = static_cast<float>((i * 7 + i / 64) % 4) - 1.5f;
  }
  write_statistics(folder / "s.h5", {shape}, {{probe}});
  const StatisticsReader statistics(folder / "s.h5");
  const auto report = search_clip(statistics, nullptr, nullptr, codec(), 1, options({0.3, 0.45, 1.0}), {});
  EXPECT_EQ(report.model_k.best_ratio, 0);
  EXPECT_NEAR(report.model_k.best_loss, 0, 1e-9);
  EXPECT_EQ(report.model_v.best_ratio, 0);
  EXPECT_NEAR(report.model_v.best_loss, 0, 1e-9);
}

// On every query the search and verify are the same measurement.
TEST(Clip, LossesAreThoseOfVerify) {
  TempDir folder;
  const auto shapes = two_layers();
  const StatisticsReader statistics(random_statistics(folder, shapes));
  const auto k = random_rotations(shapes, Side::K, true, 5), v = random_rotations(shapes, Side::V, false, 9);
  auto request = options({0.8});
  request.probes = {0, 1};
  const auto report = search_clip(statistics, &k, &v, codec(), 1, request, {});
  EXPECT_EQ(report.objective_k, "random");
  const auto side = [&](const RotationSet& set) {
    return scalar_codes(set.side, shapes, &set, codec(), {.groups = 1, .clip = 0.8});
  };
  const auto verified =
      verify(statistics, {{"r", side(k), side(v)}},
             {.windows = request.windows, .first_query = 24, .probes = {0, 1}, .layers = {}}, {});
  for (const auto& layer : verified.rows[0].layers) {
    const auto& curve = report.k.at(layer.layer);
    const auto at = static_cast<size_t>(std::ranges::find(curve.ratio, 0.8) - curve.ratio.begin());
    EXPECT_NEAR(curve.loss[at], layer.attention_kl, 1e-9);
    const auto& values = report.v.at(layer.layer);
    const auto v_at = static_cast<size_t>(std::ranges::find(values.ratio, 0.8) - values.ratio.begin());
    EXPECT_NEAR(values.loss[v_at], layer.output_error_v, 1e-9);
  }
  EXPECT_NEAR(report.model_k.best_loss, *std::ranges::min_element(report.model_k.loss), 0);
}

TEST(Clip, TheSampleFollowsTheSeedAndNothingElse) {
  TempDir folder;
  const auto shape = shape_of(16);
  write_statistics(folder / "s.h5", {shape}, {{random_probe(shape, 600, 4)}});
  const StatisticsReader statistics(folder / "s.h5");
  const auto loss = [&](uint64_t seed) {
    auto request = options({0.8, 0.9});
    request.seed = seed;
    return search_clip(statistics, nullptr, nullptr, codec(), 1, request, {}).model_k.loss;
  };
  EXPECT_EQ(loss(1), loss(1));
  EXPECT_NE(loss(1), loss(2));
}

TEST(Clip, GroupsThatNeedARatioHaveNoPointWithout) {
  TempDir folder;
  const auto shape = shape_of(64);
  write_statistics(folder / "s.h5", {shape}, {{random_probe(shape, 100, 4)}});
  const StatisticsReader statistics(folder / "s.h5");
  const auto two = search_clip(statistics, nullptr, nullptr, codec(), 2, options({0.9}), {});
  EXPECT_EQ(two.model_k.ratio, (std::vector<double>{0.9, 0.96, 1.0}));
  EXPECT_EQ(two.group_size_k, 32);
}

TEST(Clip, Refusals) {
  TempDir folder;
  const auto shapes = two_layers();
  const StatisticsReader statistics(random_statistics(folder, shapes));
  const auto refused = [&](ClipOptions request, int groups, const char* part) {
    try {
      search_clip(statistics, nullptr, nullptr, codec(), groups, request, {});
      ADD_FAILURE() << "expected: " << part;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused(options({1.5}), 1, "clip ratio 1.5");
  refused(options({-0.5}), 1, "clip ratio -0.5");
  refused(options({0.9}), 3, "3 groups do not divide");
  auto request = options({0.9});
  request.queries = 0;
  refused(request, 1, "0 queries");
  request = options({0.9});
  request.probes = {};
  refused(request, 1, "no probes chosen");

  const auto said = [&](const RotationSet* k, const CodecInfo& other) -> std::string {
    try {
      search_clip(statistics, k, nullptr, other, 1, options({0.9}), {});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(said(nullptr, find_codec("bf16")), "codec bf16 clips nothing: there is no ratio to search");
  const auto others = random_rotations({shape_of(16)}, Side::K, false, 1);
  EXPECT_NE(said(&others, codec()).find("is of layers 2, the statistics are of 1, 3"), std::string::npos)
      << said(&others, codec());
}

}  // namespace
}  // namespace oscar::test
