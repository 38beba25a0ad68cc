#include "libcalib/attention_loss.h"

#include <algorithm>
#include <cmath>

#include "libcalib/transforms/trial.h"

namespace oscar {

HeadRows head_rows(const LayerShape& shape, const Probe& probe, int head, const Transform& k,
                   const Transform& v) {
  const int64_t T = probe.tokens, H = shape.group(), Dk = shape.dim_k, Dv = shape.dim_v;
  HeadRows rows;
  rows.head = head;
  rows.tokens = T;
  std::vector<float> q(static_cast<size_t>(T * H * Dk));
  for (int64_t t = 0; t < T; ++t) {
    std::copy_n(probe.q.data() + (t * shape.q_heads + head * H) * Dk, H * Dk, q.data() + t * H * Dk);
  }
  rows.q.resize(q.size());
  rows.k.resize(static_cast<size_t>(T * Dk));
  rows.v.resize(static_cast<size_t>(T * Dv));
  k.queries(q.data(), Dk, T * H, shape.dim_k, rows.q.data());
  k.rows(probe.k.data() + head * Dk, shape.kv_heads * Dk, T, shape.dim_k, rows.k.data());
  v.rows(probe.v.data() + head * Dv, shape.kv_heads * Dv, T, shape.dim_v, rows.v.data());
  return rows;
}

void check_transforms(const LayerShape& shape, const Probe& probe, int head, const Transform& k,
                      const Transform& v, const std::string& place) {
  const int64_t samples = std::min<int64_t>(probe.tokens, 64);
  // Row `head` of `heads` at each sampled position.
  const auto sampled = [&](const std::vector<float>& rows, int64_t heads, int64_t of_head, int64_t dim) {
    std::vector<float> result;
    for (int64_t i = 0; i < samples; ++i) {
      const auto from = rows.begin() + (i * probe.tokens / samples * heads + of_head) * dim;
      result.insert(result.end(), from, from + dim);
    }
    return result;
  };
  check_logits(k, sampled(probe.q, shape.q_heads, head * shape.group(), shape.dim_k),
               sampled(probe.k, shape.kv_heads, head, shape.dim_k), shape.dim_k, shape.scale, kTrialLimit,
               place);
  check_values(v, sampled(probe.v, shape.kv_heads, head, shape.dim_v), shape.dim_v, kTrialLimit, place);
}

static void add_to(std::vector<double>& sum, const std::vector<double>& other) {
  sum.resize(std::max(sum.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) sum[i] += other[i];
}

void AttentionLoss::add(const AttentionLoss& other) {
  count += other.count;
  kl += other.kl;
  top1 += other.top1;
  logit_error += other.logit_error;
  logit_power += other.logit_power;
  output_power += other.output_power;
  output_error += other.output_error;
  output_error_k += other.output_error_k;
  output_error_v += other.output_error_v;
  add_to(q_power, other.q_power);
  add_to(o_power, other.o_power);
}

static double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return sum;
}

static std::vector<double> channel_power(const float* rows, int64_t n, int64_t dim) {
  std::vector<double> power(static_cast<size_t>(dim));
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < dim; ++i)
      power[static_cast<size_t>(i)] += std::pow(static_cast<double>(rows[r * dim + i]), 2);
  }
  return power;
}

AttentionLoss attention_loss(const LayerShape& shape, const HeadRows& rows, const Transform& v_transform,
                             const Windows& windows, int64_t first, int64_t last, const HistoryCodes& k,
                             const HistoryCodes& v, const ComputeDevice& device) {
  const int64_t H = shape.group(), N = last - first;
  const auto pairs = static_cast<size_t>(H * N), outputs = pairs * static_cast<size_t>(shape.dim_v);
  std::vector<double> kl(pairs), logit_error(pairs), logit_power(pairs);
  std::vector<uint8_t> top1(pairs);
  std::vector<float> o(outputs), o_codes(outputs), o_keys(outputs), o_values(outputs);
  // Attention is causal: a sequence cut after its last measured query gives the same rows.
  diagnose_on(device,
              {.tokens = last,
               .first_query = first,
               .group = shape.group(),
               .dim_k = shape.dim_k,
               .dim_v = shape.dim_v,
               .scale = static_cast<float>(shape.scale),
               .sink = windows.sink,
               .recent = windows.recent,
               .sliding_window = shape.sliding_window,
               .q = rows.q.data(),
               .q_stride = H * shape.dim_k,
               .k = rows.k.data(),
               .v = rows.v.data(),
               .k_codes = k.view(),
               .v_codes = v.view(),
               .logit_cap = static_cast<float>(shape.logit_cap),
               .sink_logits = shape.sinks_of(rows.head)},
              {.kl = kl.data(),
               .top1 = top1.data(),
               .logit_error = logit_error.data(),
               .logit_power = logit_power.data(),
               .o = o.data(),
               .o_codes = o_codes.data(),
               .o_keys = o_keys.data(),
               .o_values = o_values.data()});
  AttentionLoss sum;
  sum.count = H * N;
  for (size_t i = 0; i < pairs; ++i) {
    sum.kl += kl[i];
    sum.top1 += top1[i];
    sum.logit_error += logit_error[i];
    sum.logit_power += logit_power[i];
  }
  sum.q_power = channel_power(rows.q.data() + first * H * shape.dim_k, H * N, shape.dim_k);
  sum.o_power = channel_power(o.data(), H * N, shape.dim_v);
  for (auto* outputs : {&o, &o_codes, &o_keys, &o_values})
    v_transform.outputs(outputs->data(), H * N, shape.dim_v);
  sum.output_error = squared_distance(o, o_codes);
  sum.output_error_k = squared_distance(o, o_keys);
  sum.output_error_v = squared_distance(o, o_values);
  for (const double power : channel_power(o.data(), H * N, shape.dim_v)) sum.output_power += power;
  return sum;
}

}  // namespace oscar
