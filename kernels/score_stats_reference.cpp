#include <cmath>

#include "kernels/score_stats.h"

namespace oscar {

void score_stats_reference(const ScoreStatsProblem& problem, const ScoreStatsResult& result) {
  const auto& p = problem;
  const int64_t count = p.queries ? p.n_queries : p.tokens;
  for (int j = 0; j < p.group; ++j) {
    for (int64_t n = 0; n < count; ++n) {
      const int64_t t = p.queries ? p.queries[n] : n;
      const int64_t first = p.sliding_window > 0 && t >= p.sliding_window ? t - p.sliding_window + 1 : 0;
      const float* q = p.q + t * p.q_stride + static_cast<int64_t>(j) * p.dim;
      double mass = 0, sink_mass = 0, entropy = 0;
      for (int64_t s = first; s <= t; ++s) {
        double dot = 0;
        for (int i = 0; i < p.dim; ++i) dot += double(q[i]) * p.k[s * p.k_stride + i];
        const double log_p = p.scale * dot - p.lse[j * p.lse_stride + t];
        const double probability = std::exp(log_p);
        entropy -= probability * log_p;
        if (s < p.sink) {
          sink_mass += probability;
        } else if (s <= t - p.recent) {
          mass += probability;
          result.u[s] += probability;
          result.w[s] += probability * probability;
        }
      }
      result.mass[j * count + n] = static_cast<float>(mass);
      result.sink_mass[j * count + n] = static_cast<float>(sink_mass);
      result.entropy[j * count + n] = static_cast<float>(entropy);
    }
  }
}

}  // namespace oscar
