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
  LayerSink(const LayerShape& shape, const std::vector<int64_t>& calibration_lengths, int64_t probes,
            LayerSinkOptions options);

  // Sequence `index` of calibration, then of probes. Called from several threads; the sums of a sequence are
  // added when those of every sequence before it have been, so that the result does not depend on which
  // thread was faster.
  void take(int64_t index, const AttentionRows& rows);
  // The second pass (sst-proxy, sampled rows) over the layer's k and v; leaves the sink empty.
  LayerStatistics finish(std::vector<Matrix> value_metric);
  std::vector<Probe>& probes() { return probes_; }

 private:
  struct Kept {
    std::vector<float> k, v;   // (T, Hkv, D)
    std::vector<double> u, w;  // (Hkv, T)
  };
  LayerSums sums_of(int64_t sequence, const AttentionRows& rows, Kept& kept) const;
  SampledRows sample() const;

  LayerShape shape_;
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
