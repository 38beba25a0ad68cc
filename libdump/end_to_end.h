// The model with a quantised cache beside itself without: teacher-forced over the probes, token by token.
#pragma once
#include <functional>

#include "libcalib/codes.h"
#include "libcalib/end_to_end.h"
#include "libdump/decoder.h"

namespace oscar {

struct EndToEndOptions {
  Windows windows;
  int64_t first_query = 0;  // positions before it are run, not counted
  int threads = 2;
  bool deterministic = false;      // as DecoderOptions
  std::vector<int64_t> buckets{};  // ascending positions where one begins; empty: position_buckets()
};

class EndToEnd {
 public:
  // done and total in tokens times layers, the head counted as one; called from worker threads, one at a
  // time.
  using Progress = std::function<void(int64_t done, int64_t total)>;

  // Runs the exact model once and keeps its final hidden states. std::invalid_argument: no probes, one
  // without a counted position or with ids that the model has not, windows or buckets that make no sense.
  EndToEnd(Model& model, std::vector<std::vector<int32_t>> probes, EndToEndOptions options,
           const Progress& progress = {});

  // The exact model alone: its perplexity, KL 0, top-1 1.
  EndToEndResult exact() const;
  // The model whose caches hold `codes`: history rows are encoded, and read from the codes by every layer's
  // attention, so that what one layer loses goes through the next. std::invalid_argument names the row
  // (codes.name) and what its codes lack.
  EndToEndResult run(const CacheCodes& codes, const Progress& progress = {}) const;
  // Both models go on from the first `prompt` tokens of each probe, always with the most likely token (the
  // lowest id on a tie). Every layer's weights are in memory at once. Progress in tokens of the quantised
  // model. std::invalid_argument as run(); a probe shorter than the prompt, nothing to generate, a model on a GPU.
  GenerationAgreement generate(const CacheCodes& codes, int64_t prompt, int64_t count,
                               const Progress& progress = {}) const;

 private:
  std::vector<at::Tensor> forward(const CacheCodes* codes, const std::function<void(int64_t)>& step) const;
  EndToEndResult measure(const std::vector<at::Tensor>* changed,
                         const std::function<void(int64_t)>& step) const;

  Model& model_;
  std::vector<std::vector<int32_t>> probes_;
  EndToEndOptions options_;
  std::vector<at::Tensor> exact_;  // (T, hidden) of each probe
};

}  // namespace oscar
