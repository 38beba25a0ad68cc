// The sink of a run on the CPU: float32 rows in memory, several threads.
#pragma once
#include <mutex>

#include "libdump/sinks/layer_sink.h"
#include "libdump/spill.h"

namespace oscar {

class HostSink : public LayerSink {
 public:
  HostSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths, const std::vector<int64_t>& own,
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
  struct Importances {
    std::vector<double> u, w, x;  // (Hkv, T)
  };
  LayerSums sums_of(int64_t sequence, const AttentionRows& rows, Importances& of_rows) const;
  // 1 / |h|^2 of the counted queries that have a history, once for each KV head.
  void add_stream(LayerSums& sums, const AttentionRows& rows, const std::vector<int32_t>& queries) const;
  SampledRows sample(int64_t sequence, const AttentionRows& rows, const Importances& of_rows) const;
  RowsOfSequence kept(size_t i) const;

  std::vector<float> metric_;
  std::unique_ptr<Spill> kept_;             // k, then v, of each of own(); nullptr without a second pass
  std::map<int64_t, SampledRows> samples_;  // by sequence
  ExactSums total_;
  std::mutex mutex_;
};

}  // namespace oscar
