// What one layer's rows become: moments and score sums of the calibration sequences, sampled rows, held-out
// probes.
#pragma once
#include <functional>
#include <map>
#include <mutex>

#include "libcalib/exact_sums.h"
#include "libcalib/proxy.h"
#include "libcalib/statistics.h"
#include "libdump/models/model.h"
#include "libdump/spill.h"

namespace oscar {

struct LayerSinkOptions {
  Windows windows;
  bool scores = true;
  double score_queries = 1;
  uint64_t seed = 0;
  int64_t rows = 0;
  bool proxy = true;  // the second pass, or the rows of k and v for it
  bool shard =
      false;  // other workers have the rest of the run: sums keep their remainders, the second pass waits
  std::filesystem::path spill;  // where k and v wait for the second pass; empty: in memory
};

class LayerSink {
 public:
  // `run_lengths` of all calibration sequences of the run, of which `own` (ascending) come here. `probes`:
  // how many the run has. `output_metrics` as of DecoderLayer.
  LayerSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths, const std::vector<int64_t>& own,
            int64_t probes, std::vector<Matrix> output_metrics, LayerSinkOptions options);

  // Sequence `index` of the run: calibration, then probes. Called from several threads in any order, which
  // changes no bit of the result: sums are exact until finish() rounds them.
  void take(int64_t index, const AttentionRows& rows);
  // The second pass (sst-proxy) over the layer's k and v unless this is a shard, and what was sampled.
  LayerStatistics finish();
  // k and v of every sequence that came, ascending, for the second pass of a run with other workers.
  void each_sequence(const std::function<void(int64_t sequence, const RowsOfSequence& rows)>& take) const;
  std::vector<Probe>& probes() { return probes_; }  // by index in the run; 0 tokens: did not come

 private:
  struct Importances {
    std::vector<double> u, w, x;  // (Hkv, T)
  };
  LayerSums sums_of(int64_t sequence, const AttentionRows& rows, Importances& of_rows) const;
  // 1 / |h|^2 of the counted queries that have a history, once for each KV head.
  void add_stream(LayerSums& sums, const AttentionRows& rows, const std::vector<int32_t>& queries) const;
  SampledRows sample(int64_t sequence, const AttentionRows& rows, const Importances& of_rows) const;
  RowsOfSequence kept(size_t i) const;

  LayerShape shape_;
  std::vector<Matrix> output_metrics_;
  std::vector<float> metric_;  // (Hq, Dv, Dv), the same
  std::vector<int64_t> lengths_, own_;
  LayerSinkOptions options_;
  std::map<int64_t, std::vector<int64_t>> chosen_;  // positions of the sampled rows, by sequence
  std::unique_ptr<Spill> kept_;             // k, then v, of each of own_; nullptr without a second pass
  std::map<int64_t, SampledRows> samples_;  // by sequence
  std::vector<Probe> probes_;
  ExactSums total_;
  std::mutex mutex_;
};

}  // namespace oscar
