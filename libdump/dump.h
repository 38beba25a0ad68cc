// A whole calibration run: sequences in, a statistics file out. What oscar-dump and examples/end_to_end.cpp call.
#pragma once
#include "libcalib/artifacts/statistics_file.h"
#include "libdump/decoder.h"
#include "libdump/sequences.h"

namespace oscar {

struct DumpOptions {
  Precision precision = Precision::Float32;
  Windows windows;
  bool scores = true;
  double score_queries = 1;          // share of the query positions, a seeded sample
  uint64_t seed = 0;
  int64_t rows = 4096;               // sampled calibration rows a layer; 0: none
  int threads = 2;
  bool deterministic = false;
  std::filesystem::path save_qkv;    // empty: off
  bool resume = false;               // continue <output>.partial/ when it belongs to the same run
  bool restart = false;              // throw <output>.partial/ away first
};

struct DumpProgress {
  int layer, layers;                 // this one, of how many
  int64_t tokens_done, tokens_total; // token-layers
  double seconds;
};

struct DumpPlan {                    // printed before the run
  int64_t calibration_tokens, probe_tokens, sequences, layers;
  int64_t sums_bytes, rows_bytes, probe_bytes, raw_dump_bytes, hidden_bytes, weights_bytes;
};
DumpPlan plan(const Model& model, const SequenceSet& sequences, const DumpOptions& options);

// Every finished layer is kept in <output>.partial/ until the run is whole; then <output> appears and the parts go away.
StatisticsHeader dump(const Model& model, const SequenceSet& sequences, const Provenance& provenance, const DumpOptions& options,
                      const std::filesystem::path& output, const std::function<void(const DumpProgress&)>& progress);

}  // namespace oscar
