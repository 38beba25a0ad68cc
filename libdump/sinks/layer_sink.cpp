#include "libdump/sinks/layer_sink.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/score_stats.h"
#include "libdump/sinks/seeded.h"

namespace oscar {

LayerSink::LayerSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths,
                     const std::vector<int64_t>& own, int64_t probes, std::vector<Matrix> output_metrics,
                     LayerSinkOptions options)
    : shape_(shape),
      output_metrics_(std::move(output_metrics)),
      lengths_(run_lengths),
      own_(own),
      options_(std::move(options)),
      probes_(static_cast<size_t>(probes)),
      total_(shape) {
  for (const Matrix& g : output_metrics_) metric_.insert(metric_.end(), g.data(), g.data() + g.size());
  for (const RowChoice& row : sample_rows(options_.seed, lengths_, options_.rows))
    chosen_[row.sequence].push_back(row.position);
  if (!options_.proxy) return;
  std::vector<int64_t> sizes;
  for (const int64_t sequence : own_) {
    const int64_t rows = lengths_.at(static_cast<size_t>(sequence)) * shape_.kv_heads;
    sizes.push_back(rows * shape_.dim_k);
    sizes.push_back(rows * shape_.dim_v);
  }
  kept_ = std::make_unique<Spill>(sizes, options_.spill);
}

static void check_finite(const AttentionRows& rows, int64_t sequence) {
  const LayerShape& s = *rows.shape;
  const auto scan = [&](const char* name, const float* values, int64_t width) {
    for (int64_t i = 0; i < rows.tokens * width; ++i) {
      if (!std::isfinite(values[i])) {
        throw failure(
            "layer {}, sequence {}, token {}: {} is {}: the model overflows; run with --dtype float32 or "
            "check the checkpoint",
            s.layer, sequence, i / width, name, values[i]);
      }
    }
  };
  scan("q", rows.q, int64_t{s.q_heads} * s.dim_k);
  scan("k", rows.k, int64_t{s.kv_heads} * s.dim_k);
  scan("v", rows.v, int64_t{s.kv_heads} * s.dim_v);
  scan("the attention output", rows.o, int64_t{s.q_heads} * s.dim_v);
}

LayerSums LayerSink::sums_of(int64_t sequence, const AttentionRows& rows, Importances& kept) const {
  LayerSums sums(shape_);
  const int64_t tokens = rows.tokens, group = shape_.group();
  sums.add_rows(rows.q, rows.k, rows.v, rows.o, tokens);
  if (!options_.scores) return sums;

  const std::vector<int32_t> queries =
      sample_positions(options_.seed, sequence, tokens, options_.score_queries);
  const auto n = static_cast<int64_t>(queries.size());
  std::vector<float> mass(static_cast<size_t>(shape_.q_heads * n)), sink_mass(mass.size()),
      entropy(mass.size()), a(mass.size());
  kept.u.assign(static_cast<size_t>(shape_.kv_heads * tokens), 0);
  kept.w.assign(kept.u.size(), 0);
  kept.x.assign(kept.u.size(), 0);
  for (int h = 0; h < shape_.kv_heads; ++h) {
    ScoreStatsProblem problem{};
    problem.tokens = tokens;
    problem.group = shape_.group();
    problem.dim = shape_.dim_k;
    problem.scale = static_cast<float>(shape_.scale);
    problem.sink = options_.windows.sink;
    problem.recent = options_.windows.recent;
    problem.sliding_window = shape_.sliding_window;
    problem.q = rows.q + h * group * shape_.dim_k;
    problem.q_stride = int64_t{shape_.q_heads} * shape_.dim_k;
    problem.k = rows.k + int64_t{h} * shape_.dim_k;
    problem.k_stride = int64_t{shape_.kv_heads} * shape_.dim_k;
    problem.lse = rows.lse + h * group * tokens;
    problem.lse_stride = tokens;
    problem.queries = n == tokens ? nullptr : queries.data();
    problem.n_queries = n;
    problem.v = rows.v + int64_t{h} * shape_.dim_v;
    problem.v_stride = int64_t{shape_.kv_heads} * shape_.dim_v;
    problem.o = rows.o + h * group * shape_.dim_v;
    problem.o_stride = int64_t{shape_.q_heads} * shape_.dim_v;
    problem.metric = metric_.data() + h * group * shape_.dim_v * shape_.dim_v;
    problem.dim_v = shape_.dim_v;
    problem.logit_cap = static_cast<float>(shape_.logit_cap);
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

void LayerSink::add_stream(LayerSums& sums, const AttentionRows& rows,
                           const std::vector<int32_t>& queries) const {
  double sum = 0, count = 0;
  for (const int32_t t : queries) {
    if (t < options_.windows.sink + options_.windows.recent) continue;
    const float* h = rows.hidden + t * rows.hidden_width;
    double power = 0;
    for (int64_t i = 0; i < rows.hidden_width; ++i) power += static_cast<double>(h[i]) * h[i];
    sum += 1 / std::max(power, 1e-30);
    count += 1;
  }
  for (int h = 0; h < shape_.kv_heads; ++h) {
    sums.scalar(Sum::stream, h) += sum;
    sums.scalar(Sum::stream_queries, h) += count;
  }
}

void LayerSink::take(int64_t index, const AttentionRows& rows) {
  const LayerShape& s = shape_;
  const auto q_size = static_cast<size_t>(rows.tokens) * static_cast<size_t>(s.q_heads * s.dim_k);
  const auto k_size = static_cast<size_t>(rows.tokens) * static_cast<size_t>(s.kv_heads * s.dim_k);
  const auto v_size = static_cast<size_t>(rows.tokens) * static_cast<size_t>(s.kv_heads * s.dim_v);
  const auto calibration = static_cast<int64_t>(lengths_.size());
  if (index >= calibration) {
    check_finite(rows, index);
    probes_.at(static_cast<size_t>(index - calibration)) = {
        rows.tokens, {rows.q, rows.q + q_size}, {rows.k, rows.k + k_size}, {rows.v, rows.v + v_size}};
    return;
  }
  Importances importances;
  const LayerSums sums = sums_of(index, rows, importances);
  if (!sums.finite()) {
    check_finite(rows, index);
    throw failure(
        "layer {}, sequence {}: a sum is not finite although every activation is: the attention scores "
        "overflow",
        s.layer, index);
  }
  if (kept_) {
    const auto at = static_cast<size_t>(std::ranges::lower_bound(own_, index) - own_.begin());
    std::copy_n(rows.k, k_size, kept_->piece(2 * at));
    std::copy_n(rows.v, v_size, kept_->piece(2 * at + 1));
    kept_->put_away(2 * at);
    kept_->put_away(2 * at + 1);
  }
  SampledRows sampled = sample(index, rows, importances);
  const std::lock_guard lock(mutex_);
  total_.add(sums);
  if (sampled.count() > 0) samples_.emplace(index, std::move(sampled));
}

SampledRows LayerSink::sample(int64_t sequence, const AttentionRows& rows,
                              const Importances& importances) const {
  SampledRows out;
  const auto chosen = chosen_.find(sequence);
  if (chosen == chosen_.end()) return out;
  const int64_t heads = shape_.kv_heads, width_k = heads * shape_.dim_k, width_v = heads * shape_.dim_v;
  for (const int64_t t : chosen->second) {
    out.sequence.push_back(sequence);
    out.position.push_back(t);
    out.k.insert(out.k.end(), rows.k + t * width_k, rows.k + (t + 1) * width_k);
    out.v.insert(out.v.end(), rows.v + t * width_v, rows.v + (t + 1) * width_v);
    for (int64_t h = 0; options_.scores && h < heads; ++h) {
      const auto at = static_cast<size_t>(h * rows.tokens + t);
      out.u.push_back(static_cast<float>(importances.u[at]));
      out.w.push_back(static_cast<float>(importances.w[at]));
      out.x.push_back(static_cast<float>(importances.x[at]));
    }
  }
  return out;
}

RowsOfSequence LayerSink::kept(size_t i) const {
  return {lengths_[static_cast<size_t>(own_[i])], kept_->piece(2 * i), kept_->piece(2 * i + 1), {}};
}

void LayerSink::each_sequence(
    const std::function<void(int64_t sequence, const RowsOfSequence& rows)>& take) const {
  for (size_t i = 0; kept_ && i < own_.size(); ++i) {
    take(own_[i], kept(i));
    kept_->put_away(2 * i);
    kept_->put_away(2 * i + 1);
  }
}

LayerStatistics LayerSink::finish() {
  LayerStatistics layer;
  layer.sums = total_.rounded();
  if (options_.shard) layer.remainders = total_.remainders();
  // One thread: the next layer has the others.
  if (kept_ && !options_.shard) {
    add_proxy(layer.sums, static_cast<int64_t>(own_.size()), 1, [this](int64_t i) {
      const auto at = static_cast<size_t>(i);
      RowsOfSequence rows = kept(at);
      rows.owner = {rows.k, [this, at](const void*) {
                      kept_->put_away(2 * at);
                      kept_->put_away(2 * at + 1);
                    }};
      return rows;
    });
  }
  for (auto& [sequence, rows] : samples_) layer.rows.append(rows);
  samples_.clear();
  layer.value_metric.assign(static_cast<size_t>(shape_.kv_heads), Matrix::Zero(shape_.dim_v, shape_.dim_v));
  for (size_t j = 0; j < output_metrics_.size(); ++j)
    layer.value_metric[j / static_cast<size_t>(shape_.group())] += output_metrics_[j];
  return layer;
}

}  // namespace oscar
