// The sink of a run on a GPU: rows stay there, and one thread launches. Nothing waits for the device before
// finish().
#pragma once
#include "libdump/sinks/layer_sink.h"
#include "libdump/sinks/tensor_sums.h"

namespace oscar {

class DeviceSink : public LayerSink {
 public:
  DeviceSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths, const std::vector<int64_t>& own,
             int64_t probes, OutputMetrics output_metrics, LayerSinkOptions options);
  void each_sequence(
      const std::function<void(int64_t sequence, const RowsOfSequence& rows)>& take) const override;

 protected:
  void take_sequence(int64_t sequence, const AttentionRows& rows) override;
  Probe probe_of(int64_t index, const AttentionRows& rows) const override;
  LayerSums rounded(std::vector<LayerSums>* remainders) override;
  void add_second_pass(LayerSums& sums) override;
  SampledRows sampled() override;

 private:
  struct Sampled {
    const std::vector<int64_t>* positions;
    at::Tensor k, v, u, w, x;  // (n, Hkv, D), (Hkv, n)
  };
  struct Kept {
    at::Tensor k, v;
  };
  LayerSums on_host(const at::Tensor& values) const;
  void add(int64_t sequence, const at::Tensor& values);
  void check_flags() const;
  [[noreturn]] void refuse(int64_t sequence) const;
  RowsOfSequence rows_of(const Kept& kept) const;

  at::Tensor planes_, flags_;     // of add_exactly(): (planes, sums) float64 and two int32; kernels only
  std::optional<ExactSums> total_;  // without kernels
  int64_t tokens_ = 0, score_queries_ = 0, score_tokens_ = 0;
  std::vector<Kept> kept_;        // by place; undefined without a second pass
  std::map<int64_t, Sampled> samples_;
};

}  // namespace oscar
