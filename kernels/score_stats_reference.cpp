#include <cmath>
#include <vector>

#include "kernels/score_stats.h"

namespace oscar {
namespace {

using Row = std::vector<double>;

Row mapped(const float* row, const float* metric, int dim) {
  Row out(static_cast<size_t>(dim));
  for (int i = 0; i < dim; ++i) {
    for (int e = 0; e < dim; ++e) out[i] += double(metric[i * dim + e]) * row[e];
  }
  return out;
}

}  // namespace

void score_stats_reference(const ScoreStatsProblem& problem, const ScoreStatsResult& result) {
  const auto& p = problem;
  const int64_t count = p.queries ? p.n_queries : p.tokens;
  for (int j = 0; j < p.group; ++j) {
    const float* metric = p.v ? p.metric + int64_t{j} * p.dim_v * p.dim_v : nullptr;
    std::vector<Row> values;  // v G_j
    for (int64_t s = 0; p.v && s < p.tokens; ++s)
      values.push_back(mapped(p.v + s * p.v_stride, metric, p.dim_v));
    for (int64_t n = 0; n < count; ++n) {
      const int64_t t = p.queries ? p.queries[n] : n;
      const int64_t first = p.sliding_window > 0 && t >= p.sliding_window ? t - p.sliding_window + 1 : 0;
      const float* q = p.q + t * p.q_stride + static_cast<int64_t>(j) * p.dim;
      const float* o = p.v ? p.o + t * p.o_stride + static_cast<int64_t>(j) * p.dim_v : nullptr;
      const Row output = p.v ? mapped(o, metric, p.dim_v) : Row();
      double mass = 0, sink_mass = 0, entropy = 0, sensitivity = 0;
      for (int64_t s = first; s <= t; ++s) {
        double dot = 0;
        for (int i = 0; i < p.dim; ++i) dot += double(q[i]) * p.k[s * p.k_stride + i];
        const double tanh = p.logit_cap > 0 ? std::tanh(p.scale * dot / p.logit_cap) : 0,
                     slope = 1 - tanh * tanh;
        const double log_p =
            (p.logit_cap > 0 ? p.logit_cap * tanh : p.scale * dot) - p.lse[j * p.lse_stride + t];
        const double probability = std::exp(log_p);
        entropy -= probability * log_p;
        if (s < p.sink) {
          sink_mass += probability;
        } else if (s <= t - p.recent) {
          mass += probability;
          result.u[s] += probability;
          result.w[s] += probability * probability;
          double distance = 0;
          for (int i = 0; p.v && i < p.dim_v; ++i)
            distance += (double(p.v[s * p.v_stride + i]) - o[i]) * (values[s][i] - output[i]);
          const double moved = slope * slope * probability * probability * distance;
          sensitivity += moved;
          if (p.v) result.x[s] += moved;
        }
      }
      result.mass[j * count + n] = static_cast<float>(mass);
      result.sink_mass[j * count + n] = static_cast<float>(sink_mass);
      result.entropy[j * count + n] = static_cast<float>(entropy);
      if (p.v) result.a[j * count + n] = static_cast<float>(sensitivity);
    }
  }
}

}  // namespace oscar
