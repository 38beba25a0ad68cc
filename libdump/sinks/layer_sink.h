// What one layer's rows become: moments and score sums of the calibration sequences, sampled rows, held-out
// probes.
#pragma once
#include <functional>
#include <map>

#include "libcalib/exact_sums.h"
#include "libcalib/proxy.h"
#include "libcalib/statistics.h"
#include "libdump/models/model.h"

namespace oscar {

// Positions of the rows that a run samples, by sequence; the same in every layer.
using SampledPositions = std::map<int64_t, std::vector<int64_t>>;
SampledPositions choose_rows(uint64_t seed, const std::vector<int64_t>& run_lengths, int64_t rows);

struct LayerSinkOptions {
  Windows windows;
  bool scores = true;
  double score_queries = 1;
  uint64_t seed = 0;
  std::shared_ptr<const SampledPositions> rows;  // of choose_rows(); nullptr: none
  bool proxy = true;  // the second pass, or the rows of k and v for it
  bool shard =
      false;  // other workers have the rest of the run: sums keep their remainders, the second pass waits
  std::filesystem::path spill;  // where k and v wait for the second pass; empty: in memory
  at::Device device = at::kCPU;
  bool deterministic = false;  // on a GPU: the second pass is that of merged shards, on `threads` of the CPU
  int threads = 1;
};

class LayerSink {
 public:
  // `run_lengths` of all calibration sequences of the run, of which `own` (ascending) come here. `probes`:
  // how many the run has. `output_metrics` as of DecoderLayer.
  LayerSink(const LayerShape& shape, const std::vector<int64_t>& run_lengths, const std::vector<int64_t>& own,
            int64_t probes, OutputMetrics output_metrics, LayerSinkOptions options);
  virtual ~LayerSink() = default;

  // Sequence `index` of the run: calibration, then probes. Called in any order, on the CPU from several
  // threads, which changes no bit of the result: sums are exact until finish() rounds them.
  void take(int64_t index, const AttentionRows& rows);
  // The second pass (sst-proxy) over the layer's k and v unless this is a shard, and what was sampled.
  LayerStatistics finish();
  // k and v of every sequence that came, ascending, for the second pass of a run with other workers.
  virtual void each_sequence(
      const std::function<void(int64_t sequence, const RowsOfSequence& rows)>& take) const = 0;
  std::vector<Probe>& probes() { return probes_; }  // by index in the run; 0 tokens: did not come

 protected:
  virtual void take_sequence(int64_t sequence, const AttentionRows& rows) = 0;
  virtual Probe probe_of(int64_t index, const AttentionRows& rows) const = 0;
  // ExactSums::rounded() of all sequences, and its remainders where they are asked for; once.
  virtual LayerSums rounded(std::vector<LayerSums>* remainders) = 0;
  virtual void add_second_pass(LayerSums& sums) = 0;
  virtual SampledRows sampled() = 0;  // by sequence; once

  const std::vector<int64_t>* chosen(int64_t sequence) const;  // positions of sampled rows; nullptr: none
  size_t place_of(int64_t sequence) const;                     // in own_
  const LayerShape& shape() const { return shape_; }
  const LayerSinkOptions& options() const { return options_; }
  const std::vector<int64_t>& own() const { return own_; }
  int64_t tokens_of(int64_t sequence) const { return lengths_.at(static_cast<size_t>(sequence)); }
  std::vector<float> metric() const;  // (Hq, Dv, Dv), the output metrics

 private:
  LayerShape shape_;
  OutputMetrics output_metrics_;
  std::vector<int64_t> lengths_, own_;
  LayerSinkOptions options_;
  std::vector<Probe> probes_;
};

// What does not fit into the precision is an error that names layer, sequence and token: host rows only.
void check_finite(const AttentionRows& rows, int64_t sequence);

// The one for options.device.
std::unique_ptr<LayerSink> make_layer_sink(const LayerShape& shape, const std::vector<int64_t>& run_lengths,
                                           const std::vector<int64_t>& own, int64_t probes,
                                           OutputMetrics output_metrics, LayerSinkOptions options);

}  // namespace oscar
