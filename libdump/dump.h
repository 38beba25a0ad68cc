// A whole calibration run: sequences in, a statistics file out. What oscar-dump and examples/end_to_end.cpp
// call.
#pragma once
#include "libcalib/artifacts/statistics_file.h"
#include "libdump/decoder.h"
#include "libdump/memory_plan.h"
#include "libdump/sequences.h"
#include "libdump/shard.h"
#include "libdump/tokenizer/tokenizer.h"

namespace oscar {

struct DumpOptions {
  Precision precision = Precision::Float32;
  Windows windows;
  bool scores = true;
  double score_queries = 1;  // share of the query positions, a seeded sample
  uint64_t seed = 0;
  int64_t rows = 4096;  // sampled calibration rows a layer; 0: none
  int threads = 2;
  int64_t memory = 0;  // bound on the resident memory of the process, bytes; 0: none. CPU runs only
  bool deterministic = false;
  bool proxy = true;               // sums of sst-proxy, which need a second pass over k and v
  Shard shard;                     // of how many workers this is one
  std::filesystem::path save_qkv;  // empty: off; a folder that is new or empty
  bool perplexity = false;         // run the final norm and lm_head as well
  bool resume = false;             // continue <output>.partial/ when it belongs to the same run
  bool restart = false;            // throw <output>.partial/ away first
};

// Who made this run, of what: everything that a statistics file says about its origin but the windows.
// `tokens` and `shard` are of options.shard, the rest of the whole run. `tokenizer` is nullptr when the
// corpus is token ids, `chat_format` "" when it has no conversations. Reads the whole checkpoint for its digest.
Provenance describe(const Model& model, const Tokenizer* tokenizer, const std::string& bos_policy,
                    const SequenceSet& sequences, const DumpOptions& options,
                    const std::string& chat_format = "");

struct DumpProgress {
  int layer, layers;                  // this one, of how many
  int64_t tokens_done, tokens_total;  // tokens times layers
};

// std::invalid_argument for options that no run has together on that device; dump() asks too.
void check_options(const DumpOptions& options, at::Device device);

// What a run holds on a GPU, bytes.
struct DevicePlan {
  int64_t weights = 0;  // of two layers, one of them being read
  int64_t hidden = 0;   // states of all sequences
  int64_t rows = 0;     // k and v of two layers for the second pass
  int64_t working = 0;  // the longest sequence inside a layer, and its sums
  int64_t free = 0;     // on the device
  int64_t peak() const { return weights + hidden + rows + working; }
  std::string text() const;
};

// What a run, or one worker of it, will write and hold, in bytes; printed before it starts.
struct DumpPlan {
  int64_t calibration_tokens = 0, probe_tokens = 0, sequences = 0, layers = 0;
  int64_t sums = 0;    // moments and score statistics
  int64_t rows = 0;    // sampled rows
  int64_t proxy = 0;   // of a shard: k and v for the second pass that waits for the others
  int64_t probes = 0;  // full q, k, v of the probes
  int64_t raw = 0;     // what --save-qkv writes, or would write
  MemoryPlan memory;   // how it fits into options.memory
  std::optional<DevicePlan> device;  // of a run on a GPU
};
// std::invalid_argument when the GPU has not that much free.
DevicePlan plan_device(const Model& model, const SequenceSet& sequences, const DumpOptions& options);
MemoryNeeds needs_of(const Model& model, const SequenceSet& sequences, const DumpOptions& options);
DumpPlan plan(const Model& model, const SequenceSet& sequences, const DumpOptions& options);

struct DumpResult {
  StatisticsHeader header;
  double waited = 0;                 // seconds for weights, while nothing computed
  double waited_for_writing = 0;     // the same, for the layer before to be finished and written
  double gpu_first_layer = 0, gpu_busy = 0, gpu_idle = 0;  // seconds of a GPU: as Decoder has them
  std::optional<double> perplexity;  // of the probes, or of the calibration sequences where there are none
};
// A worker runs its share of the sequences and writes its own file, to be read together with those of the
// others. For n workers the same sums as for one are kept: bit for bit when every sequence is computed the
// same, which --deterministic makes sure of. Every finished layer is kept in <output>.partial/ until the run
// is whole; then <output> appears and the parts go away. Throws std::invalid_argument when such a folder is
// there and neither resume nor restart is asked for, or when it belongs to another run (names the first
// option that differs).
DumpResult dump(Model& model, const SequenceSet& sequences, const Provenance& provenance,
                const DumpOptions& options, const std::filesystem::path& output,
                const std::function<void(const DumpProgress&)>& progress);

}  // namespace oscar
