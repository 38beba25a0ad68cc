#include "libdump/sinks/layer_sink.h"

#include <cmath>

#include "formats/error.h"
#include "kernels/score_stats.h"
#include "libdump/sinks/seeded.h"

namespace oscar {

LayerSink::LayerSink(const LayerShape& shape, const std::vector<int64_t>& calibration_lengths, int64_t probes,
                     std::vector<Matrix> output_metrics, LayerSinkOptions options)
    : shape_(shape),
      output_metrics_(std::move(output_metrics)),
      lengths_(calibration_lengths),
      options_(options),
      kept_(calibration_lengths.size()),
      probes_(static_cast<size_t>(probes)),
      total_(shape) {
  for (const Matrix& g : output_metrics_) metric_.insert(metric_.end(), g.data(), g.data() + g.size());
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

LayerSums LayerSink::sums_of(int64_t sequence, const AttentionRows& rows, Kept& kept) const {
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
  Kept& kept = kept_[static_cast<size_t>(index)];
  kept.k.assign(rows.k, rows.k + k_size);
  kept.v.assign(rows.v, rows.v + v_size);
  LayerSums sums = sums_of(index, rows, kept);
  if (!sums.finite()) {
    check_finite(rows, index);
    throw failure(
        "layer {}, sequence {}: a sum is not finite although every activation is: the attention scores "
        "overflow",
        s.layer, index);
  }
  const std::lock_guard lock(mutex_);
  waiting_.emplace(index, std::move(sums));
  for (auto it = waiting_.find(next_); it != waiting_.end(); it = waiting_.find(next_)) {
    total_.merge(it->second);
    waiting_.erase(it);
    ++next_;
  }
}

SampledRows LayerSink::sample() const {
  SampledRows out;
  const auto width_k = static_cast<size_t>(shape_.kv_heads * shape_.dim_k),
             width_v = static_cast<size_t>(shape_.kv_heads * shape_.dim_v);
  for (const RowChoice& row : sample_rows(options_.seed, lengths_, options_.rows)) {
    const Kept& kept = kept_[static_cast<size_t>(row.sequence)];
    const auto t = static_cast<size_t>(row.position),
               tokens = static_cast<size_t>(lengths_[static_cast<size_t>(row.sequence)]);
    out.sequence.push_back(row.sequence);
    out.position.push_back(row.position);
    out.k.insert(out.k.end(), kept.k.begin() + static_cast<std::ptrdiff_t>(t * width_k),
                 kept.k.begin() + static_cast<std::ptrdiff_t>((t + 1) * width_k));
    out.v.insert(out.v.end(), kept.v.begin() + static_cast<std::ptrdiff_t>(t * width_v),
                 kept.v.begin() + static_cast<std::ptrdiff_t>((t + 1) * width_v));
    for (size_t h = 0; options_.scores && h < static_cast<size_t>(shape_.kv_heads); ++h) {
      out.u.push_back(static_cast<float>(kept.u[h * tokens + t]));
      out.w.push_back(static_cast<float>(kept.w[h * tokens + t]));
      out.x.push_back(static_cast<float>(kept.x[h * tokens + t]));
    }
  }
  return out;
}

LayerStatistics LayerSink::finish() {
  std::vector<Matrix> sigma_q;
  for (int h = 0; h < shape_.kv_heads; ++h) {
    sigma_q.push_back(total_.matrix(Sum::qq, h) / (static_cast<double>(total_.tokens) * shape_.group()));
  }
  for (size_t i = 0; i < kept_.size(); ++i)
    total_.add_proxy(sigma_q, kept_[i].k.data(), kept_[i].v.data(), lengths_[i]);
  LayerStatistics layer;
  if (options_.rows > 0) layer.rows = sample();
  kept_.clear();
  layer.sums = std::move(total_);
  layer.value_metric.assign(static_cast<size_t>(shape_.kv_heads), Matrix::Zero(shape_.dim_v, shape_.dim_v));
  for (size_t j = 0; j < output_metrics_.size(); ++j)
    layer.value_metric[j / static_cast<size_t>(shape_.group())] += output_metrics_[j];
  return layer;
}

}  // namespace oscar
