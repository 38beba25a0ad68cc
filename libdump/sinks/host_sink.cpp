#include "libdump/sinks/host_sink.h"

#include <algorithm>

#include "formats/error.h"
#include "kernels/score_stats.h"
#include "libdump/sinks/seeded.h"

namespace oscar {

HostSink::HostSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths,
                   const std::vector<int64_t>& own, int64_t probes, OutputMetrics output_metrics,
                   LayerSinkOptions options)
    : LayerSink(shape, run_lengths, own, probes, std::move(output_metrics), std::move(options)),
      metric_(metric()),
      total_(shape) {
  if (!this->options().proxy) return;
  std::vector<int64_t> sizes;
  for (const int64_t sequence : own) {
    const int64_t rows = tokens_of(sequence) * shape.kv_heads;
    sizes.push_back(rows * shape.dim_k);
    sizes.push_back(rows * shape.dim_v);
  }
  kept_ = std::make_unique<Spill>(sizes, this->options().spill);
}

LayerSums HostSink::sums_of(int64_t sequence, const AttentionRows& rows, Importances& kept) const {
  LayerSums sums(shape());
  const int64_t tokens = rows.tokens, group = shape().group();
  sums.add_rows(rows.q, rows.k, rows.v, rows.o, tokens);
  if (!options().scores) return sums;

  const std::vector<int32_t> queries =
      sample_positions(options().seed, sequence, tokens, options().score_queries);
  const auto n = static_cast<int64_t>(queries.size());
  std::vector<float> mass(static_cast<size_t>(shape().q_heads * n)), sink_mass(mass.size()),
      entropy(mass.size()), a(mass.size());
  kept.u.assign(static_cast<size_t>(shape().kv_heads * tokens), 0);
  kept.w.assign(kept.u.size(), 0);
  kept.x.assign(kept.u.size(), 0);
  for (int h = 0; n > 0 && h < shape().kv_heads; ++h) {  // a short sequence may have none of the sample
    ScoreStatsProblem problem{};
    problem.tokens = tokens;
    problem.group = shape().group();
    problem.dim = shape().dim_k;
    problem.scale = static_cast<float>(shape().scale);
    problem.sink = options().windows.sink;
    problem.recent = options().windows.recent;
    problem.sliding_window = shape().sliding_window;
    problem.q = rows.q + h * group * shape().dim_k;
    problem.q_stride = int64_t{shape().q_heads} * shape().dim_k;
    problem.k = rows.k + int64_t{h} * shape().dim_k;
    problem.k_stride = int64_t{shape().kv_heads} * shape().dim_k;
    problem.lse = rows.lse + h * group * tokens;
    problem.lse_stride = tokens;
    problem.queries = n == tokens ? nullptr : queries.data();
    problem.n_queries = n;
    problem.v = rows.v + int64_t{h} * shape().dim_v;
    problem.v_stride = int64_t{shape().kv_heads} * shape().dim_v;
    problem.o = rows.o + h * group * shape().dim_v;
    problem.o_stride = int64_t{shape().q_heads} * shape().dim_v;
    problem.metric = metric_.data() + h * group * shape().dim_v * shape().dim_v;
    problem.dim_v = shape().dim_v;
    problem.logit_cap = static_cast<float>(shape().logit_cap);
    const auto at = static_cast<size_t>(h * group * n);
    score_stats(problem,
                {mass.data() + at, sink_mass.data() + at, entropy.data() + at, kept.u.data() + h * tokens,
                 kept.w.data() + h * tokens, a.data() + at, kept.x.data() + h * tokens});
  }
  sums.add_scores(rows.q, rows.k, rows.v, tokens,
                  {queries, mass.data(), sink_mass.data(), entropy.data(), kept.u.data(), kept.w.data(),
                   a.data(), kept.x.data()});
  add_stream(sums, rows, queries);
  return sums;
}

void HostSink::add_stream(LayerSums& sums, const AttentionRows& rows,
                           const std::vector<int32_t>& queries) const {
  double sum = 0, count = 0;
  for (const int32_t t : queries) {
    if (t < options().windows.sink + options().windows.recent) continue;
    const float* h = rows.hidden + t * rows.hidden_width;
    double power = 0;
    for (int64_t i = 0; i < rows.hidden_width; ++i) power += static_cast<double>(h[i]) * h[i];
    sum += 1 / std::max(power, 1e-30);
    count += 1;
  }
  for (int h = 0; h < shape().kv_heads; ++h) {
    sums.scalar(Sum::stream, h) += sum;
    sums.scalar(Sum::stream_queries, h) += count;
  }
}

Probe HostSink::probe_of(int64_t index, const AttentionRows& rows) const {
  check_finite(rows, index);
  const LayerShape& s = shape();
  return {rows.tokens,
          {rows.q, rows.q + rows.tokens * s.q_heads * s.dim_k},
          {rows.k, rows.k + rows.tokens * s.kv_heads * s.dim_k},
          {rows.v, rows.v + rows.tokens * s.kv_heads * s.dim_v}};
}

void HostSink::take_sequence(int64_t index, const AttentionRows& rows) {
  Importances importances;
  const LayerSums sums = sums_of(index, rows, importances);
  if (!sums.finite()) {
    check_finite(rows, index);
    throw failure(
        "layer {}, sequence {}: a sum is not finite although every activation is: the attention scores "
        "overflow",
        shape().layer, index);
  }
  if (kept_) {
    const size_t at = place_of(index);
    std::copy_n(rows.k, rows.tokens * shape().kv_heads * shape().dim_k, kept_->piece(2 * at));
    std::copy_n(rows.v, rows.tokens * shape().kv_heads * shape().dim_v, kept_->piece(2 * at + 1));
    kept_->put_away(2 * at);
    kept_->put_away(2 * at + 1);
  }
  SampledRows sampled = sample(index, rows, importances);
  const std::lock_guard lock(mutex_);
  total_.add(sums);
  if (sampled.count() > 0) samples_.emplace(index, std::move(sampled));
}

SampledRows HostSink::sample(int64_t sequence, const AttentionRows& rows,
                              const Importances& importances) const {
  SampledRows out;
  const std::vector<int64_t>* positions = chosen(sequence);
  if (!positions) return out;
  const int64_t heads = shape().kv_heads, width_k = heads * shape().dim_k, width_v = heads * shape().dim_v;
  for (const int64_t t : *positions) {
    out.sequence.push_back(sequence);
    out.position.push_back(t);
    out.k.insert(out.k.end(), rows.k + t * width_k, rows.k + (t + 1) * width_k);
    out.v.insert(out.v.end(), rows.v + t * width_v, rows.v + (t + 1) * width_v);
    for (int64_t h = 0; options().scores && h < heads; ++h) {
      const auto at = static_cast<size_t>(h * rows.tokens + t);
      out.u.push_back(static_cast<float>(importances.u[at]));
      out.w.push_back(static_cast<float>(importances.w[at]));
      out.x.push_back(static_cast<float>(importances.x[at]));
    }
  }
  return out;
}

RowsOfSequence HostSink::kept(size_t i) const {
  return {tokens_of(own()[i]), kept_->piece(2 * i), kept_->piece(2 * i + 1), {}};
}

void HostSink::each_sequence(
    const std::function<void(int64_t sequence, const RowsOfSequence& rows)>& take) const {
  for (size_t i = 0; kept_ && i < own().size(); ++i) {
    take(own()[i], kept(i));
    kept_->put_away(2 * i);
    kept_->put_away(2 * i + 1);
  }
}

SampledRows HostSink::sampled() {
  SampledRows all;
  for (const auto& [sequence, rows] : samples_) all.append(rows);
  samples_.clear();
  return all;
}

LayerSums HostSink::rounded(std::vector<LayerSums>* remainders) {
  if (remainders) *remainders = total_.remainders();
  return total_.rounded();
}

// One thread: the next layer has the others.
void HostSink::add_second_pass(LayerSums& sums) {
  add_proxy(sums, static_cast<int64_t>(own().size()), 1, [this](int64_t i) {
    const auto at = static_cast<size_t>(i);
    RowsOfSequence rows = kept(at);
    rows.owner = {rows.k, [this, at](const void*) {
                    kept_->put_away(2 * at);
                    kept_->put_away(2 * at + 1);
                  }};
    return rows;
  });
}

}  // namespace oscar
