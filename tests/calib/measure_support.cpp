#include "tests/calib/measure_support.h"

#include <Eigen/QR>

namespace oscar::test {

std::vector<LayerShape> two_layers(int64_t sliding_window) {
  LayerShape shape{
      .layer = 1, .q_heads = 4, .kv_heads = 2, .dim_k = 16, .dim_v = 16, .scale = 0.25, .sliding_window = 0};
  std::vector<LayerShape> layers{shape, shape};
  layers[1].layer = 3;
  layers[1].sliding_window = sliding_window;
  return layers;
}

Probe random_probe(const LayerShape& shape, int64_t tokens, uint64_t seed) {
  const auto T = static_cast<size_t>(tokens), Hq = static_cast<size_t>(shape.q_heads),
             Hkv = static_cast<size_t>(shape.kv_heads), Dk = static_cast<size_t>(shape.dim_k),
             Dv = static_cast<size_t>(shape.dim_v);
  Probe probe{.tokens = tokens,
              .q = normal(T * Hq * Dk, seed),
              .k = normal(T * Hkv * Dk, seed + 1),
              .v = normal(T * Hkv * Dv, seed + 2)};
  for (size_t i = 0; i < T * Hkv; ++i) {
    probe.k[i * Dk + 2] = 6 + probe.k[i * Dk + 2];  // a mean far from zero
    probe.v[i * Dv + 5] *= 8;                       // a loud channel
  }
  return probe;
}

void write_statistics(const fs::path& path, const std::vector<LayerShape>& layers,
                      const std::vector<std::vector<Probe>>& probes) {
  StatisticsWriter writer(path, DType::F32);
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerStatistics statistics;
    statistics.sums = LayerSums(layers[i]);
    writer.layer(statistics, probes[i]);
  }
  StatisticsHeader header;
  header.provenance.model_name = "random";
  header.provenance.model_digest = "0123";
  header.provenance.layers_total = 4;
  header.windows = {.sink = 8, .recent = 16};
  header.layers = layers;
  for (const auto& probe : probes.front()) header.probe_lengths.push_back(probe.tokens);
  writer.finish(header);
}

fs::path random_statistics(const TempDir& folder, const std::vector<LayerShape>& layers) {
  const auto path = folder / "stats.h5";
  std::vector<std::vector<Probe>> probes;
  for (const auto& shape : layers) {
    const auto seed = static_cast<uint64_t>(100 * shape.layer);
    probes.push_back({random_probe(shape, 96, seed), random_probe(shape, 80, seed + 10)});
  }
  write_statistics(path, layers, probes);
  return path;
}

RotationSet random_rotations(const std::vector<LayerShape>& layers, Side side, bool per_head, uint64_t seed) {
  RotationSet set{.side = side, .objective = "random", .composition = "", .per_head = per_head, .layers = {}};
  for (const auto& shape : layers) {
    const int D = shape.dim(side);
    for (int head = 0; head < (per_head ? shape.kv_heads : 1); ++head) {
      const auto entries = normal(static_cast<size_t>(D * D), seed++);
      const Matrix square = Eigen::Map<const Eigen::MatrixXf>(entries.data(), D, D).cast<double>();
      set.layers[shape.layer].rotation.push_back(Eigen::HouseholderQR<Matrix>(square).householderQ() *
                                                 Matrix::Identity(D, D));
    }
  }
  return set;
}

}  // namespace oscar::test
