// What one layer's rows become: moments and score sums of the calibration sequences, sampled rows, held-out
// probes.
#pragma once
#include <map>
#include <mutex>

#include "libcalib/statistics.h"
#include "libdump/models/model.h"

namespace oscar {

struct LayerSinkOptions {
  Windows windows;
  bool scores = true;
  double score_queries = 1;
  uint64_t seed = 0;
  int64_t rows = 0;
};

class LayerSink {
 public:
  // `output_metrics` as of DecoderLayer.
  LayerSink(const LayerShape& shape, const std::vector<int64_t>& calibration_lengths, int64_t probes,
            std::vector<Matrix> output_metrics, LayerSinkOptions options);

  // Sequence `index` of calibration, then of probes. Called from several threads; the sums of a sequence are
  // added when those of every sequence before it have been, so that the result does not depend on which
  // thread was faster.
  void take(int64_t index, const AttentionRows& rows);
  // The second pass (sst-proxy, sampled rows) over the layer's k and v; leaves the sink empty.
  LayerStatistics finish();
  std::vector<Probe>& probes() { return probes_; }

 private:
  struct Kept {
    std::vector<float> k, v;      // (T, Hkv, D)
    std::vector<double> u, w, x;  // (Hkv, T)
  };
  LayerSums sums_of(int64_t sequence, const AttentionRows& rows, Kept& kept) const;
  // 1 / |h|^2 of the counted queries that have a history, once for each KV head.
  void add_stream(LayerSums& sums, const AttentionRows& rows, const std::vector<int32_t>& queries) const;
  SampledRows sample() const;

  LayerShape shape_;
  std::vector<Matrix> output_metrics_;
  std::vector<float> metric_;  // (Hq, Dv, Dv), the same
  std::vector<int64_t> lengths_;
  LayerSinkOptions options_;
  std::vector<Kept> kept_;
  std::vector<Probe> probes_;
  LayerSums total_;
  std::mutex mutex_;
  std::map<int64_t, LayerSums> waiting_;  // done before an earlier sequence
  int64_t next_ = 0;                      // whose turn it is to be added
};

}  // namespace oscar
