// Greedy generation with a cache that grows token by token: exact, or held as codes.
#pragma once
#include <functional>

#include "libcalib/codes.h"
#include "libdump/models/model.h"

namespace oscar {

class Generator {
 public:
  // Loads every layer. `positions` is the longest sequence, prompt and generated tokens together.
  Generator(Model& model, int64_t positions, int threads, bool deterministic);

  // `count` tokens after each prompt, the most likely one every time (the lowest id on a tie). Without
  // `codes` the cache is exact; with them a row is encoded when it leaves the recent window, on its own, and
  // from then on read as its codes say. `step(1)` after each token, from worker threads.
  std::vector<std::vector<int32_t>> greedy(const std::vector<std::vector<int32_t>>& prompts, int64_t count,
                                           const CacheCodes* codes, const Windows& windows,
                                           const std::function<void(int64_t)>& step) const;

 private:
  std::vector<int32_t> greedy_one(std::span<const int32_t> prompt, int64_t count, const CacheCodes* codes,
                                  const Windows& windows, const std::function<void(int64_t)>& step) const;

  const Model& model_;
  int64_t positions_;
  int threads_;
  bool deterministic_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
};

}  // namespace oscar
