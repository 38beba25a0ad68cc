// The search for clip ratios on held-out rows: the attention-aware loss itself, measured with the packed
// codec on a seeded sample of queries. Keys: mean KL(p || p^) with exact values; values: ||S(V - V^)||^2 /
// ||SV||^2 with exact keys.
//
// The codec turns a ratio into an index of the sorted row, trunc(ratio D), so that at a small D several
// ratios are one and the same; a ratio whose index is D - 1 is the same as no clip. Such ratios are measured
// once and kept as one point of the curve (`notes` says which).
#pragma once
#include "libcalib/rotation.h"
#include "libcalib/verify.h"

namespace oscar {

struct ClipOptions {
  Windows windows;
  int64_t first_query = 0;
  int64_t queries = 256;  // sampled positions per probe and layer, in blocks of 64
  uint64_t seed = 0;
  std::vector<int> probes;
  // The grid; 0 (no clip) and the hand ratios are always part of it.
  std::vector<double> ratios = {0.80, 0.84, 0.88, 0.90, 0.92, 0.94, 0.96, 0.98, 1.0};
};
inline constexpr double kHandRatioK = 0.96, kHandRatioV = 0.92;  // the constants of the published recipes

struct ClipCurve {
  std::vector<double> ratio;  // the grid, ascending
  std::vector<double> loss;   // as many
  double best_ratio = 0, best_loss = 0;
  double hand_ratio = 0, hand_loss = 0;  // kHandRatioK or kHandRatioV, always a point of the curve
};
struct ClipReport {
  Provenance provenance;
  std::string objective_k, objective_v;  // of the rotations; "identity" without one
  std::string codec;
  int groups = 1, group_size_k = 0, group_size_v = 0;  // sizes of the first layer
  ClipOptions options;  // first_query at least the first position with a history
  std::vector<std::string> notes{};
  std::map<int, ClipCurve> k{}, v{};  // by global layer id
  ClipCurve model_k{}, model_v{};     // one ratio for the whole model: mean loss over layers
};

// std::invalid_argument for a probe, ratio or window that the statistics or the codec do not support.
ClipReport search_clip(const StatisticsReader& statistics, const RotationSet* k, const RotationSet* v,
                       const CodecInfo& codec, int groups, const ClipOptions& options,
                       const std::function<void(int64_t, int64_t)>& progress);

}  // namespace oscar
