// What a calibration run leaves behind, in memory. libcalib/artifacts/statistics_file.h reads and writes it
// as HDF5.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "libcalib/moments.h"

namespace oscar {

// Everything that must agree before two files may be merged, and what every artifact says about its origin.
struct Provenance {
  std::string tool_version;
  std::string model_name, model_path, architecture;
  std::string model_digest;      // sha256 of the checkpoint's bytes
  std::string tokenizer_digest;  // sha256 of vocabulary, merges and special tokens; "" for token-id input
  std::string text_digest;       // sha256 of the token ids of the calibration sequences, in order
  std::string bos_policy;        // "none", "one per document", "one per sequence", "as given"
  std::string rope;              // canonical text of the rotary parameters
  std::string dtype, device;     // "float32" | "bfloat16", "cpu" | "cuda:0"
  std::string id_space = "global";
  std::string command;   // the options of the run that change its result, canonical order, no paths
  int layers_total = 0;  // decoder layers of the model
  int64_t tokens = 0;    // calibration tokens
  std::vector<int64_t> sequence_lengths;  // calibration sequences
  std::string shard = "0/1";              // "i/n" of what n workers were dealt; "0/1": the whole run
};

// A seeded sample of calibration rows with their importances, for codebooks and clip searches.
struct SampledRows {
  std::vector<int64_t> position;  // (N) position inside its sequence
  std::vector<int64_t> sequence;  // (N)
  std::vector<float> k, v;        // (N, Hkv, Dk), (N, Hkv, Dv)
  std::vector<float> u, w;        // (N, Hkv); empty when the run kept no score statistics
  std::vector<float> x;           // (N, Hkv); empty as well in files that never held it
  int64_t count() const { return static_cast<int64_t>(position.size()); }
  void append(const SampledRows& more) {
    const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    add(position, more.position);
    add(sequence, more.sequence);
    add(k, more.k);
    add(v, more.v);
    add(u, more.u);
    add(w, more.w);
    add(x, more.x);
  }
};

// One held-out sequence of one layer, exact inputs to its attention.
struct Probe {
  int64_t tokens = 0;
  std::vector<float> q, k, v;  // (T, Hq, Dk), (T, Hkv, Dk), (T, Hkv, Dv)
};

struct LayerStatistics {
  LayerSums sums;  // the doubles nearest to the exact sums
  std::vector<LayerSums>
      remainders;  // of a shard: what they leave (ExactSums::remainders), so that merging rounds once
  std::vector<Matrix>
      value_metric;  // Hkv x (Dv, Dv): G = sum_j W_O,j^T W_O,j; empty when the weights were not seen
  SampledRows rows;  // may be empty
};

// The file, without its layers' bodies.
struct StatisticsHeader {
  Provenance provenance;
  Windows windows;
  bool has_scores = false;  // score statistics were kept
  bool has_output_scores =
      false;  // those of the attention output too (qq_out, x, ...); not in files of before
  std::vector<LayerShape> layers;  // ascending global ids; layers without a growing cache are absent
  std::vector<int64_t> probe_lengths;
  std::vector<std::vector<int32_t>>
      probe_ids;  // token ids of each probe; empty in files that never held them
  // Of a shard: which of the run's calibration sequences and probes it ran, ascending. sequence_lengths,
  // probe_lengths and probe_ids are those of the whole run, tokens those of the shard. All empty in a whole
  // run.
  std::vector<int64_t> shard_sequences, shard_probes;
  std::string memory_plan;  // how a run with a bound on its memory was made to fit; "" without one
  std::string
      shard_plan;  // sha256 of text, probes, options and who runs what: the same in all shards of a run
};

}  // namespace oscar
