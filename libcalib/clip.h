// The search for clip ratios on held-out rows: the attention-aware loss itself, measured with the packed codec on a seeded
// sample of queries. Keys: mean KL(p || p^) with exact values; values: ||S(V - V^)||^2 / ||SV||^2 with exact keys.
#pragma once
#include "libcalib/verify.h"

namespace oscar {

struct ClipOptions {
  Windows windows;
  int64_t first_query = 0;
  int64_t queries = 256;                 // sampled positions per probe and layer
  uint64_t seed = 0;
  std::vector<int> probes;
  std::vector<double> ratios;            // the grid; 0 (no clip) is always part of it
};
struct ClipCurve {
  std::vector<double> ratio;             // the grid
  std::vector<double> loss;              // as many
  double best_ratio = 0, best_loss = 0;
  double hand_ratio = 0, hand_loss = 0;  // .96 for K, .92 for V
};
struct ClipReport {
  Provenance provenance;
  std::string objective_k, objective_v;
  ClipOptions options;
  std::map<int, ClipCurve> k, v;         // by global layer id
  ClipCurve model_k, model_v;            // one ratio for the whole model: mean loss over layers
};

ClipReport search_clip(const StatisticsReader& statistics, const RotationSet* k, const RotationSet* v, const CodecInfo& codec,
                       int groups, const ClipOptions& options, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace oscar
