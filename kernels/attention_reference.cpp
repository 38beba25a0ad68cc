#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention.h"

namespace oscar {

void causal_attention_reference(const AttentionProblem& problem, float* o, float* lse) {
  const auto& p = problem;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t first = p.sliding_window > 0 && t >= p.sliding_window ? t - p.sliding_window + 1 : 0;
    for (int j = 0; j < p.group; ++j) {
      const float* q = p.q + t * p.q_stride + static_cast<int64_t>(j) * p.dim_k;
      std::vector<double> weights;
      for (int64_t s = first; s <= t; ++s) {
        double dot = 0;
        for (int i = 0; i < p.dim_k; ++i) dot += double(q[i]) * p.k[s * p.k_stride + i];
        const double l = p.scale * dot;
        weights.push_back(p.logit_cap > 0 ? p.logit_cap * std::tanh(l / p.logit_cap) : l);
      }
      double top = *std::ranges::max_element(weights);
      if (p.sink_logits) top = std::max<double>(top, p.sink_logits[j]);
      double sum = p.sink_logits ? std::exp(p.sink_logits[j] - top) : 0;
      for (double& weight : weights) sum += weight = std::exp(weight - top);
      std::vector<double> out(p.dim_v);
      for (int64_t s = first; s <= t; ++s) {
        for (int i = 0; i < p.dim_v; ++i) out[i] += weights[s - first] * p.v[s * p.v_stride + i];
      }
      for (int i = 0; i < p.dim_v; ++i) {
        o[t * p.o_stride + static_cast<int64_t>(j) * p.dim_v + i] = static_cast<float>(out[i] / sum);
      }
      lse[j * p.lse_stride + t] = static_cast<float>(top + std::log(sum));
    }
  }
}

}  // namespace oscar
