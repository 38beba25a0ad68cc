// What verify and the clip search ask of a set-up before they start, and how they read it layer by layer.
#pragma once
#include "libcalib/verify.h"

namespace oscar {

CodecOptions layer_options(const SideSetup& setup, int layer);  // with the layer's own clip ratio, if any
Transform head_transform(const SideSetup& setup, int layer, int head);
std::string objective(const SideSetup& setup);  // "identity" without a rotation

// All of these throw std::invalid_argument that names what was asked for and what there is.
std::vector<LayerShape> select_layers(const StatisticsHeader& header,
                                      const std::vector<int>& layers);  // empty: all
void check_probes(const StatisticsHeader& header, const std::vector<int>& probes, const Windows& windows,
                  int64_t first_query);
// The rotation covers every layer with the right dims and heads; the codec takes the dims, groups, clip and
// windows.
void check_setup(const SideSetup& setup, Side side, const std::vector<LayerShape>& shapes,
                 const Windows& windows, const std::string& row);

// std::runtime_error naming layer, probe and row when a value is NaN or infinite.
Probe load_probe(const StatisticsReader& statistics, const LayerShape& shape, int index);

}  // namespace oscar
