// What verify and the clip search ask of a cache's codes before they start, and how they read probes.
#pragma once
#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/codes.h"
#include "libcalib/rotation.h"

namespace oscar {

// One scalar codec for all layers; without a rotation (nullptr) rows are coded as they are. Layers that the
// rotation does not have are left out: check_codes() says so. `clip_by_layer` goes before options.clip.
SideCodes scalar_codes(Side side, const std::vector<LayerShape>& shapes, const RotationSet* rotation,
                       const CodecInfo& codec, const CodecOptions& options,
                       const std::map<int, double>& clip_by_layer = {});

// All of these throw std::invalid_argument that names what was asked for and what there is.
std::vector<LayerShape> select_layers(const StatisticsHeader& header,
                                      const std::vector<int>& layers);  // empty: all
void check_probes(const StatisticsHeader& header, const std::vector<int>& probes, const Windows& windows,
                  int64_t first_query);
// The codes cover every layer with the right dims and heads; the codecs take the dims and options.
void check_codes(const SideCodes& codes, Side side, const std::vector<LayerShape>& shapes,
                 const std::string& row);
// Why an engine of these codecs cannot serve such windows, for a note; empty when it can.
std::string unserved_windows(const CacheCodes& codes, const Windows& windows);
// Why codes from these statistics are not made for such windows, for a note: they read tokens from codes that the statistics did not count
// as history. Empty when they are.
std::string unfitted_windows(const Windows& statistics, const Windows& windows);

// std::runtime_error naming layer, probe and row when a value is NaN or infinite.
Probe load_probe(const StatisticsReader& statistics, const LayerShape& shape, int index);

}  // namespace oscar
