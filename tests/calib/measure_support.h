// Small statistics files with probes, for what reads them: verify, the clip search, their reports.
#pragma once
#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/rotation.h"
#include "tests/support/support.h"

namespace oscar::test {

// Layers 1 and 3 of a model: Hq = 4, Hkv = 2, D = 16.
std::vector<LayerShape> two_layers(int64_t sliding_window = 0);
// Normal rows with a few loud channels; `tokens` of them.
Probe random_probe(const LayerShape& shape, int64_t tokens, uint64_t seed);
// probes[i][j]: probe j of layers[i], all layers with the same lengths.
void write_statistics(const fs::path& path, const std::vector<LayerShape>& layers,
                      const std::vector<std::vector<Probe>>& probes);
// The same, of random_probe: two probes of 96 and 80 tokens.
fs::path random_statistics(const TempDir& folder, const std::vector<LayerShape>& layers);

// A seeded orthogonal matrix for every layer, or every KV head.
RotationSet random_rotations(const std::vector<LayerShape>& layers, Side side, bool per_head, uint64_t seed);

}  // namespace oscar::test
