#include "libdump/sinks/device_sink.h"

#include <ATen/ATen.h>

#include <climits>

#include "formats/error.h"
#include "kernels/exact_sums_device.h"
#include "libdump/models/host_rows.h"
#include "libdump/sinks/seeded.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

constexpr int kPlanes = 4;  // of the sums of sequences of like size two or three hold something

std::vector<float> floats(const at::Tensor& tensor) {
  const at::Tensor values = to_cpu(tensor.to(at::kFloat).contiguous());
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

}  // namespace

DeviceSink::DeviceSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths,
                       const std::vector<int64_t>& own, int64_t probes, OutputMetrics output_metrics,
                       LayerSinkOptions options)
    : LayerSink(shape, run_lengths, own, probes, std::move(output_metrics), std::move(options)) {
  if (this->options().proxy) kept_.resize(own.size());
  if (!has_kernels(this->options().device)) return;
  const auto there = at::TensorOptions(this->options().device);
  planes_ = at::zeros({kPlanes, sum_offsets(shape)[kSumCount]}, there.dtype(at::kDouble));
  flags_ = to_device(at::tensor({INT_MAX, 0}, at::kInt), this->options().device);
}

void DeviceSink::take_sequence(int64_t sequence, const AttentionRows& rows) {
  const DeviceRows& device = *rows.device;
  TensorSumsInput input{shape(), device, options().windows, options().scores, {}};
  int64_t counted = rows.tokens;
  if (options().scores && options().score_queries < 1) {
    const auto queries = sample_positions(options().seed, sequence, rows.tokens, options().score_queries);
    counted = static_cast<int64_t>(queries.size());
    input.queries = to_device(at::tensor(queries, at::kInt), options().device);
  }
  const TensorSums sums = kernels_fit(input) ? kernel_sums(input) : tensor_sums(input);
  add(sequence, sums.sums);
  tokens_ += rows.tokens;
  if (options().scores) {
    score_queries_ += counted;
    score_tokens_ += rows.tokens;
  }
  if (options().proxy) kept_[place_of(sequence)] = {device.k, device.v};
  if (const std::vector<int64_t>* positions = chosen(sequence)) {
    const at::Tensor at = to_device(at::tensor(*positions), options().device);
    Sampled sampled{positions, device.k.index_select(0, at), device.v.index_select(0, at), {}, {}, {}};
    if (options().scores) {
      sampled.u = sums.u.index_select(1, at);
      sampled.w = sums.w.index_select(1, at);
      sampled.x = sums.x.index_select(1, at);
    }
    samples_.emplace(sequence, std::move(sampled));
  }
}

void DeviceSink::add(int64_t sequence, const at::Tensor& values) {
  if (!planes_.defined()) {
    const LayerSums sums = on_host(values);
    if (!sums.finite()) refuse(sequence);
    if (!total_) total_.emplace(shape());
    total_->add(sums);
    return;
  }
  const Status status = cuda::add_exactly(planes_.mutable_data_ptr<double>(), kPlanes, values.numel(),
                                          values.const_data_ptr<double>(), flags_.mutable_data_ptr<int32_t>(),
                                          static_cast<int32_t>(sequence), stream_of(options().device));
  if (!status.ok()) throw failure("{}", status.what);
}

LayerSums DeviceSink::on_host(const at::Tensor& values) const {
  const at::Tensor host = to_cpu(values);
  const auto offsets = sum_offsets(shape());
  LayerSums sums(shape());
  for (size_t i = 0; i < kSumCount; ++i)
    std::copy(host.const_data_ptr<double>() + offsets[i], host.const_data_ptr<double>() + offsets[i + 1],
              sums.values(sum_table()[i].sum).begin());
  return sums;
}

LayerSums DeviceSink::rounded(std::vector<LayerSums>* remainders) {
  LayerSums sums;
  at::Tensor used;
  if (planes_.defined()) {
    check_flags();
    used = to_cpu(planes_.ne(0).any(1));
  }
  const bool* holds = used.defined() ? used.const_data_ptr<bool>() : nullptr;
  if (holds && !remainders && !std::any_of(holds + 2, holds + kPlanes, [](bool some) { return some; })) {
    sums = on_host(planes_[0] + planes_[1]);  // the nearest double of the two
  } else {
    if (!total_) total_.emplace(shape());
    for (int64_t p = 0; holds && p < kPlanes; ++p) {
      if (holds[p]) total_->add(on_host(planes_[p]));
    }
    sums = total_->rounded();
    if (remainders) *remainders = total_->remainders();
  }
  sums.tokens = tokens_;
  sums.score_queries = score_queries_;
  sums.score_tokens = score_tokens_;
  return sums;
}

void DeviceSink::check_flags() const {
  const at::Tensor flags = to_cpu(flags_);
  if (const int sequence = flags.const_data_ptr<int32_t>()[0]; sequence != INT_MAX) refuse(sequence);
  if (flags.const_data_ptr<int32_t>()[1] != 0)
    throw failure("layer {}: its sums span more than {} doubles hold exactly", shape().layer, kPlanes);
}

void DeviceSink::refuse(int64_t sequence) const {
  throw failure("layer {}, sequence {}: an activation or a sum of them is not finite: the model overflows; run "
                "with another --dtype or check the checkpoint",
                shape().layer, sequence);
}

RowsOfSequence DeviceSink::rows_of(const Kept& kept) const {
  const auto rows = std::make_shared<std::pair<std::vector<float>, std::vector<float>>>(floats(kept.k),
                                                                                       floats(kept.v));
  return {kept.k.size(0), rows->first.data(), rows->second.data(), rows};
}

void DeviceSink::add_second_pass(LayerSums& sums) {
  if (sums.tokens == 0) return;
  if (options().deterministic) {
    add_proxy(sums, static_cast<int64_t>(kept_.size()), options().threads,
              [this](int64_t i) { return rows_of(kept_[static_cast<size_t>(i)]); });
    return;
  }
  const LayerShape& s = shape();
  at::Tensor sigma = at::empty({s.kv_heads, s.dim_k, s.dim_k}, at::kDouble);
  std::ranges::copy(sums.values(Sum::qq), sigma.mutable_data_ptr<double>());
  sigma = to_device(sigma.div_(static_cast<double>(sums.tokens) * s.group()), options().device);
  at::Tensor total;
  for (const Kept& kept : kept_) {
    const at::Tensor one = proxy_sums(s, kept.k, kept.v, sigma);
    total = total.defined() ? total + one : one;
  }
  total = to_cpu(total);
  const double* from = total.const_data_ptr<double>();
  const auto matrices = sums.values(Sum::vv_proxy);
  std::copy_n(from, matrices.size(), matrices.begin());
  std::copy_n(from + matrices.size(), s.kv_heads, sums.values(Sum::proxy_weight).begin());
}

Probe DeviceSink::probe_of(int64_t index, const AttentionRows& rows) const {
  check_finite(HostRows(rows), index);
  return {rows.tokens, floats(rows.device->q), floats(rows.device->k), floats(rows.device->v)};
}

SampledRows DeviceSink::sampled() {
  SampledRows rows;
  if (samples_.empty()) return rows;
  std::vector<at::Tensor> k, v, u, w, x;
  for (const auto& [sequence, sampled] : samples_) {
    rows.position.insert(rows.position.end(), sampled.positions->begin(), sampled.positions->end());
    rows.sequence.insert(rows.sequence.end(), sampled.positions->size(), sequence);
    k.push_back(sampled.k);
    v.push_back(sampled.v);
    if (!options().scores) continue;
    u.push_back(sampled.u);
    w.push_back(sampled.w);
    x.push_back(sampled.x);
  }
  rows.k = floats(at::cat(k));
  rows.v = floats(at::cat(v));
  if (options().scores) {
    rows.u = floats(at::cat(u, 1).t());
    rows.w = floats(at::cat(w, 1).t());
    rows.x = floats(at::cat(x, 1).t());
  }
  samples_.clear();
  return rows;
}

void DeviceSink::each_sequence(
    const std::function<void(int64_t sequence, const RowsOfSequence& rows)>& take) const {
  for (size_t i = 0; i < kept_.size(); ++i) take(own()[i], rows_of(kept_[i]));
}

}  // namespace oscar
