#include "libcalib/setup.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"

namespace oscar {

SideCodes scalar_codes(Side side, const std::vector<LayerShape>& shapes, const RotationSet* rotation,
                       const CodecInfo& codec, const CodecOptions& options,
                       const std::map<int, double>& clip_by_layer) {
  if (rotation && rotation->side != side) {
    throw invalid("rotation '{}' is for {}, it was given for {}", rotation->objective,
                  side_name(rotation->side), side_name(side));
  }
  SideCodes codes{.side = side, .objective = rotation ? rotation->objective : "identity", .layers = {}};
  for (const auto& shape : shapes) {
    HeadCode head{.transform = {}, .codec = &codec, .options = options, .eigenvalues = {}};
    if (const auto own = clip_by_layer.find(shape.layer); own != clip_by_layer.end())
      head.options.clip = own->second;
    if (!rotation) {
      codes.layers[shape.layer] = {head};
      continue;
    }
    const auto found = rotation->layers.find(shape.layer);
    if (found == rotation->layers.end()) continue;
    const LayerRotation& layer = found->second;
    const auto pick = [](const auto& of_heads, size_t h) { return of_heads[of_heads.size() == 1 ? 0 : h]; };
    auto& heads = codes.layers[shape.layer];
    for (size_t h = 0; h < std::max(layer.rotation.size(), layer.means.size()); ++h) {
      head.transform.forward = pick(layer.rotation, h);
      if (!layer.inverse.empty()) head.transform.inverse = pick(layer.inverse, h);
      if (!layer.means.empty()) head.transform.mean = pick(layer.means, h);
      if (!layer.eigenvalues.empty()) head.eigenvalues = pick(layer.eigenvalues, h);
      heads.push_back(head);
    }
  }
  if (codes.layers.empty() && !shapes.empty()) {
    std::vector<int> asked, known;
    for (const auto& shape : shapes) asked.push_back(shape.layer);
    for (const auto& entry : rotation->layers) known.push_back(entry.first);
    throw invalid("the {} rotation '{}' is of layers {}, the statistics are of {}: another model's",
                  side_name(side), rotation->objective, fmt::join(known, ", "), fmt::join(asked, ", "));
  }
  return codes;
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
  if (windows.sink < 0 || windows.recent < 0) {
    throw invalid("windows sink {}, recent {}: expected numbers from 0", windows.sink, windows.recent);
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

static void check_layer(const std::vector<HeadCode>& heads, const SideCodes& codes, const LayerShape& shape,
                        const std::string& row) {
  const int dim = shape.dim(codes.side);
  if (heads.size() != 1 && heads.size() != static_cast<size_t>(shape.kv_heads)) {
    throw invalid("row '{}', layer {}: the {} codes '{}' have {} heads, the statistics have {} KV heads", row,
                  shape.layer, side_name(codes.side), codes.objective, heads.size(), shape.kv_heads);
  }
  for (const auto& head : heads) {
    const auto& [forward, inverse, mean] = head.transform;
    for (const Matrix* map : {&forward, &inverse}) {
      if (map->size() == 0 || (map->rows() == dim && map->cols() == dim)) continue;
      throw invalid("row '{}', layer {}: the {} rotation is {} x {}, the statistics have head dim {}", row,
                    shape.layer, side_name(codes.side), map->rows(), map->cols(), dim);
    }
    if (mean.size() != 0 && mean.size() != dim) {
      throw invalid("row '{}', layer {}: the {} mean has {} elements, the statistics have head dim {}", row,
                    shape.layer, side_name(codes.side), mean.size(), dim);
    }
    head.codec->encode(nullptr, 0, dim, head.options);  // for its refusals
  }
}

void check_codes(const SideCodes& codes, Side side, const std::vector<LayerShape>& shapes,
                 const std::string& row) {
  if (codes.side != side) {
    throw invalid("row '{}': codes '{}' are for {}, they were given for {}", row, codes.objective,
                  side_name(codes.side), side_name(side));
  }
  for (const auto& shape : shapes) {
    const auto found = codes.layers.find(shape.layer);
    if (found == codes.layers.end()) {
      std::vector<int> known;
      for (const auto& [id, heads] : codes.layers) known.push_back(id);
      throw invalid("row '{}': the {} codes '{}' have no layer {} of the statistics; they have {}", row,
                    side_name(side), codes.objective, shape.layer, fmt::join(known, ", "));
    }
    check_layer(found->second, codes, shape, row);
  }
}

std::string unfitted_windows(const Windows& statistics, const Windows& windows) {
  if (windows.sink >= statistics.sink && windows.recent >= statistics.recent) return "";
  return fmt::format(
      "windows {}/{} read tokens from codes that the statistics, of windows {}/{}, did not count: codes "
      "weighted by importance lose much "
      "there; dump with --sink {} --recent {}",
      windows.sink, windows.recent, statistics.sink, statistics.recent, windows.sink, windows.recent);
}

std::string unserved_windows(const CacheCodes& codes, const Windows& windows) {
  for (const SideCodes* side : {&codes.k, &codes.v}) {
    for (const auto& [id, heads] : side->layers) {
      const CodecInfo& codec = *heads.front().codec;
      for (const auto& [name, value] : {std::pair{"sink", windows.sink}, {"recent", windows.recent}}) {
        if (value % codec.window_multiple == 0) continue;
        return fmt::format(
            "row '{}': {} window of {} tokens: codec {} moves pages of {} tokens, so its engine cannot serve "
            "this; it is measured all the same",
            codes.name, name, value, codec.name, codec.window_multiple);
      }
    }
  }
  return {};
}

}  // namespace oscar
