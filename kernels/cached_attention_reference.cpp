#include "kernels/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace oscar {

void cached_attention_reference(const CachedAttentionProblem& problem, float* o, float* lse) {
  const AttentionProblem& p = problem.exact;
  const int64_t sink = std::min(problem.sink, p.tokens);
  const int64_t coded = std::max<int64_t>(p.tokens - problem.recent - sink, 0);
  std::vector<float> k_codes(coded * p.dim_k), v_codes(coded * p.dim_v);
  if (coded > 0) {
    problem.k_codes.decode(problem.k_codes.self, sink, coded, k_codes.data());
    problem.v_codes.decode(problem.v_codes.self, sink, coded, v_codes.data());
  }
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t first = p.sliding_window > 0 && t >= p.sliding_window ? t - p.sliding_window + 1 : 0;
    const auto history = [&](int64_t s) { return s >= sink && s <= t - problem.recent; };
    const auto key = [&](int64_t s) {
      return history(s) ? k_codes.data() + (s - sink) * p.dim_k : p.k + s * p.k_stride;
    };
    const auto value = [&](int64_t s) {
      return history(s) ? v_codes.data() + (s - sink) * p.dim_v : p.v + s * p.v_stride;
    };
    for (int j = 0; j < p.group; ++j) {
      const float* q = p.q + t * p.q_stride + static_cast<int64_t>(j) * p.dim_k;
      std::vector<double> weights;
      for (int64_t s = first; s <= t; ++s) {
        double dot = 0;
        for (int i = 0; i < p.dim_k; ++i) dot += double(q[i]) * key(s)[i];
        const double l = p.scale * dot;
        weights.push_back(p.logit_cap > 0 ? p.logit_cap * std::tanh(l / p.logit_cap) : l);
      }
      double top = *std::ranges::max_element(weights);
      if (p.sink_logits) top = std::max<double>(top, p.sink_logits[j]);
      double sum = p.sink_logits ? std::exp(p.sink_logits[j] - top) : 0;
      for (double& weight : weights) sum += weight = std::exp(weight - top);
      std::vector<double> out(p.dim_v);
      for (int64_t s = first; s <= t; ++s) {
        for (int i = 0; i < p.dim_v; ++i) out[i] += weights[s - first] * value(s)[i];
      }
      for (int i = 0; i < p.dim_v; ++i) {
        o[t * p.o_stride + static_cast<int64_t>(j) * p.dim_v + i] = static_cast<float>(out[i] / sum);
      }
      if (lse) lse[j * p.lse_stride + t] = static_cast<float>(top + std::log(sum));
    }
  }
}

}  // namespace oscar
