#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/diagnose.h"

namespace oscar {
namespace {

double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double(a[i]) * b[i];
  return sum;
}

// Scores become probabilities; returns the log-sum-exp, that of `extra` too where there is one.
double softmax(std::vector<double>& scores, const float* extra) {
  double top = *std::ranges::max_element(scores);
  if (extra) top = std::max<double>(top, *extra);
  double sum = extra ? std::exp(*extra - top) : 0;
  for (const double score : scores) sum += std::exp(score - top);
  const double lse = top + std::log(sum);
  for (double& score : scores) score = std::exp(score - lse);
  return lse;
}

}  // namespace

void diagnose_reference(const DiagnoseProblem& problem, const DiagnoseResult& result) {
  const auto& p = problem;
  const int64_t measured = p.tokens - p.first_query;
  const int64_t begin = std::max<int64_t>(p.sink, 0);
  const int64_t coded = std::max<int64_t>(std::min(p.tokens, p.tokens - p.recent) - begin, 0);
  std::vector<float> k_codes(coded * p.dim_k), v_codes(coded * p.dim_v);
  if (coded > 0) {
    p.k_codes.decode(p.k_codes.self, begin, coded, k_codes.data());
    p.v_codes.decode(p.v_codes.self, begin, coded, v_codes.data());
  }
  for (int64_t n = 0; n < measured; ++n) {
    const int64_t t = p.first_query + n;
    const int64_t first = p.sliding_window > 0 && t >= p.sliding_window ? t - p.sliding_window + 1 : 0;
    const auto logit = [&](const float* q, const float* k) {
      const double l = p.scale * dot(q, k, p.dim_k);
      return p.logit_cap > 0 ? p.logit_cap * std::tanh(l / p.logit_cap) : l;
    };
    const auto in_history = [&](int64_t s) { return s >= begin && s <= t - p.recent; };
    for (int j = 0; j < p.group; ++j) {
      const float* q = p.q + t * p.q_stride + static_cast<int64_t>(j) * p.dim_k;
      std::vector<double> exact, coded_keys;
      double error = 0, power = 0;
      for (int64_t s = first; s <= t; ++s) {
        const double l = logit(q, p.k + s * p.dim_k);
        const double l_codes = in_history(s) ? logit(q, k_codes.data() + (s - begin) * p.dim_k) : l;
        exact.push_back(l);
        coded_keys.push_back(l_codes);
        error += (l - l_codes) * (l - l_codes);
        power += l * l;
      }
      const int64_t out = j * measured + n;
      result.logit_error[out] = error;
      result.logit_power[out] = power;
      result.top1[out] = std::ranges::max_element(exact) - exact.begin() ==
                         std::ranges::max_element(coded_keys) - coded_keys.begin();
      std::vector<double> probability = exact, probability_codes = coded_keys;
      const float* extra = p.sink_logits ? p.sink_logits + j : nullptr;
      const double lse = softmax(probability, extra), lse_codes = softmax(probability_codes, extra);
      double kl = lse_codes - lse;
      for (size_t i = 0; i < exact.size(); ++i) kl += probability[i] * (exact[i] - coded_keys[i]);
      result.kl[out] = kl;
      for (int i = 0; i < p.dim_v; ++i) {
        double o = 0, o_codes = 0, o_keys = 0, o_values = 0;
        for (int64_t s = first; s <= t; ++s) {
          const double v = p.v[s * p.dim_v + i];
          const double v_code = in_history(s) ? v_codes[(s - begin) * p.dim_v + i] : v;
          o += probability[s - first] * v;
          o_codes += probability_codes[s - first] * v_code;
          o_keys += probability_codes[s - first] * v;
          o_values += probability[s - first] * v_code;
        }
        const int64_t at = (n * p.group + j) * p.dim_v + i;
        result.o[at] = static_cast<float>(o);
        result.o_codes[at] = static_cast<float>(o_codes);
        result.o_keys[at] = static_cast<float>(o_keys);
        result.o_values[at] = static_cast<float>(o_values);
      }
    }
  }
}

}  // namespace oscar
