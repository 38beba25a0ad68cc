// How a run fits into a bound on the memory of the process, before it starts.
#pragma once
#include <cstdint>
#include <string>

namespace oscar {

// All in bytes but for the counts. Of one worker: what its sequences and the model's largest layer need.
struct MemoryNeeds {
  int layers = 0, threads = 1;
  int64_t weights = 0;  // the largest layer, as products read it
  int64_t loading = 0;  // on top while it is read: pages of the checkpoint, pieces before they are joined
  int64_t hidden = 0;   // the hidden states of all sequences
  int64_t longest_hidden = 0;  // of the longest
  int64_t rows = 0;            // k and v of a layer for the second pass
  int64_t longest_rows = 0;
  int64_t activations = 0;  // of the longest sequence inside a layer, with what its statistics take
  int64_t results = 0;      // sums, samples and probes of a layer
  int64_t text = 0;         // token ids, rotary table, tokenizer
  int64_t assembly = 0;     // of a layer when parts become a file, and of the lm_head where it runs
};

struct MemoryPlan {
  int64_t limit = 0;  // 0: none
  int layers = 0;
  int64_t layer = 0;  // bytes of the largest layer's weights
  int block = 1;      // sequences that run at the same time
  bool overlap =
      true;  // while a layer computes the next one is read and dequantised, and the last one's part written
  bool spill = false;        // hidden states, k and v are in a mapped temporary file beside the output
  int64_t spilled = 0;       // its size
  int64_t peak = 0;          // expected resident memory of the process
  std::string text() const;  // one line, of figures that depend on the inputs and the limit alone
};

// The fastest way to run within `limit`: threads are given up last, then the overlap, then memory for what a
// file can hold. std::invalid_argument when none fits, with the smallest limit that would do.
MemoryPlan plan_memory(const MemoryNeeds& needs, int64_t limit);
// The one with the smallest peak.
MemoryPlan smallest_plan(const MemoryNeeds& needs);

}  // namespace oscar
