#include "libcalib/setup.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"

namespace oscar {

CodecOptions layer_options(const SideSetup& setup, int layer) {
  auto options = setup.options;
  if (const auto own = setup.clip_by_layer.find(layer); own != setup.clip_by_layer.end())
    options.clip = own->second;
  return options;
}

Transform head_transform(const SideSetup& setup, int layer, int head) {
  if (!setup.rotation) return {};
  return {.forward = setup.rotation->layers.at(layer).of_head(head), .inverse = {}, .mean = {}};
}

std::string objective(const SideSetup& setup) {
  return setup.rotation ? setup.rotation->objective : "identity";
}

std::vector<LayerShape> select_layers(const StatisticsHeader& header, const std::vector<int>& layers) {
  if (layers.empty()) return header.layers;
  std::vector<LayerShape> selected;
  for (const auto& shape : header.layers) {
    if (std::ranges::find(layers, shape.layer) != layers.end()) selected.push_back(shape);
  }
  for (const int layer : layers) {
    if (std::ranges::find(header.layers, layer, &LayerShape::layer) == header.layers.end()) {
      std::vector<int> known;
      for (const auto& shape : header.layers) known.push_back(shape.layer);
      throw invalid("layer {}: the statistics have no such layer; they have {}", layer,
                    fmt::join(known, ", "));
    }
  }
  return selected;
}

void check_probes(const StatisticsHeader& header, const std::vector<int>& probes, const Windows& windows,
                  int64_t first_query) {
  const auto& lengths = header.probe_lengths;
  if (lengths.empty()) {
    throw invalid("the statistics hold no probes: run oscar-dump with --probe on held-out text");
  }
  if (probes.empty())
    throw invalid("no probes chosen: the statistics have {}, numbered from 0", lengths.size());
  if (windows.sink < 0 || windows.recent < 1) {
    throw invalid(
        "windows sink {}, recent {}: expected sink >= 0 and recent >= 1 (a token sees itself exactly)",
        windows.sink, windows.recent);
  }
  for (size_t i = 0; i < probes.size(); ++i) {
    const int probe = probes[i];
    if (probe < 0 || static_cast<size_t>(probe) >= lengths.size()) {
      throw invalid("probe {}: the statistics have {}, numbered from 0", probe, lengths.size());
    }
    if (std::count(probes.begin(), probes.end(), probe) > 1)
      throw invalid("probe {} is asked for twice", probe);
    const int64_t tokens = lengths[static_cast<size_t>(probe)];
    if (first_query < 0 || first_query >= tokens) {
      throw invalid("first counted position {}: probe {} has {} tokens", first_query, probe, tokens);
    }
    if (windows.sink + windows.recent >= tokens) {
      throw invalid(
          "probe {} has {} tokens and the windows keep {} + {} of them exact: nothing is quantised; use "
          "longer "
          "probes or smaller --sink and --recent",
          probe, tokens, windows.sink, windows.recent);
    }
  }
}

Probe load_probe(const StatisticsReader& statistics, const LayerShape& shape, int index) {
  Probe probe = statistics.probe(shape.layer, index);
  for (const auto& [name, rows] : {std::pair{"q", &probe.q}, {"k", &probe.k}, {"v", &probe.v}}) {
    const auto bad = std::ranges::find_if_not(*rows, [](float x) { return std::isfinite(x); });
    if (bad == rows->end()) continue;
    const auto width = static_cast<int64_t>(rows->size()) / probe.tokens;
    throw failure(
        "{}: layer {}, probe {}: {} of token {} is {}: dump these statistics again (in float32 or bfloat16)",
        statistics.path().string(), shape.layer, index, name, (bad - rows->begin()) / width, *bad);
  }
  return probe;
}

static void check_rotation(const RotationSet& set, Side side, const LayerShape& shape,
                           const std::string& row) {
  if (set.side != side) {
    throw invalid("row '{}': rotation '{}' is for {}, it was given for {}", row, set.objective,
                  side_name(set.side), side_name(side));
  }
  const auto found = set.layers.find(shape.layer);
  if (found == set.layers.end()) {
    std::vector<int> known;
    for (const auto& [id, layer] : set.layers) known.push_back(id);
    throw invalid("row '{}': the {} rotation '{}' has no layer {} of the statistics; it has {}", row,
                  side_name(side), set.objective, shape.layer, fmt::join(known, ", "));
  }
  const auto& rotations = found->second.rotation;
  if (rotations.size() != 1 && rotations.size() != static_cast<size_t>(shape.kv_heads)) {
    throw invalid("row '{}', layer {}: the {} rotation has {} heads, the statistics have {} KV heads", row,
                  shape.layer, side_name(side), rotations.size(), shape.kv_heads);
  }
  for (const auto& rotation : rotations) {
    if (rotation.rows() != shape.dim(side) || rotation.cols() != shape.dim(side)) {
      throw invalid("row '{}', layer {}: the {} rotation is {} x {}, the statistics have head dim {}", row,
                    shape.layer, side_name(side), rotation.rows(), rotation.cols(), shape.dim(side));
    }
  }
}

void check_setup(const SideSetup& setup, Side side, const std::vector<LayerShape>& shapes,
                 const Windows& windows, const std::string& row) {
  const auto multiple = setup.codec->window_multiple;
  for (const auto& [name, value] : {std::pair{"sink", windows.sink}, {"recent", windows.recent}}) {
    if (value % multiple != 0) {
      throw invalid("row '{}': {} window of {} tokens: codec {} moves pages of {} tokens, use a multiple",
                    row, name, value, setup.codec->name, multiple);
    }
  }
  for (const auto& shape : shapes) {
    if (setup.rotation) check_rotation(*setup.rotation, side, shape, row);
    setup.codec->encode(nullptr, 0, shape.dim(side), layer_options(setup, shape.layer));  // for its refusals
  }
}

}  // namespace oscar
