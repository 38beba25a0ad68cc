#include "libdump/sinks/layer_sink.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libdump/sinks/device_sink.h"
#include "libdump/sinks/host_sink.h"
#include "libdump/sinks/seeded.h"

namespace oscar {

LayerSink::LayerSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths,
                     const std::vector<int64_t>& own, int64_t probes, OutputMetrics output_metrics,
                     LayerSinkOptions options)
    : shape_(shape),
      output_metrics_(std::move(output_metrics)),
      lengths_(run_lengths),
      own_(own),
      options_(std::move(options)),
      probes_(static_cast<size_t>(probes)) {}

SampledPositions choose_rows(uint64_t seed, const std::vector<int64_t>& run_lengths, int64_t rows) {
  SampledPositions chosen;
  for (const RowChoice& row : sample_rows(seed, run_lengths, rows)) chosen[row.sequence].push_back(row.position);
  return chosen;
}

std::vector<float> LayerSink::metric() const {
  std::vector<float> metric;
  for (const Matrix& g : *output_metrics_) metric.insert(metric.end(), g.data(), g.data() + g.size());
  return metric;
}

const std::vector<int64_t>* LayerSink::chosen(int64_t sequence) const {
  if (!options_.rows) return nullptr;
  const auto found = options_.rows->find(sequence);
  return found == options_.rows->end() ? nullptr : &found->second;
}

size_t LayerSink::place_of(int64_t sequence) const {
  return static_cast<size_t>(std::ranges::lower_bound(own_, sequence) - own_.begin());
}

void check_finite(const AttentionRows& rows, int64_t sequence) {
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

void LayerSink::take(int64_t index, const AttentionRows& rows) {
  const auto calibration = static_cast<int64_t>(lengths_.size());
  if (index < calibration) return take_sequence(index, rows);
  probes_.at(static_cast<size_t>(index - calibration)) = probe_of(index, rows);
}

LayerStatistics LayerSink::finish() {
  LayerStatistics layer;
  layer.sums = rounded(options_.shard ? &layer.remainders : nullptr);
  if (options_.proxy && !options_.shard) add_second_pass(layer.sums);
  layer.rows = sampled();
  layer.value_metric.assign(static_cast<size_t>(shape_.kv_heads), Matrix::Zero(shape_.dim_v, shape_.dim_v));
  for (size_t j = 0; j < output_metrics_->size(); ++j)
    layer.value_metric[j / static_cast<size_t>(shape_.group())] += (*output_metrics_)[j];
  return layer;
}

std::unique_ptr<LayerSink> make_layer_sink(const LayerShape& shape, const std::vector<int64_t>& run_lengths,
                                           const std::vector<int64_t>& own, int64_t probes,
                                           OutputMetrics output_metrics, LayerSinkOptions options) {
  if (options.device.is_cpu())
    return std::make_unique<HostSink>(shape, run_lengths, own, probes, std::move(output_metrics),
                                      std::move(options));
  return std::make_unique<DeviceSink>(shape, run_lengths, own, probes, std::move(output_metrics),
                                      std::move(options));
}

}  // namespace oscar
