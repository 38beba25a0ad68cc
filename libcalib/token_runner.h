// The whole model over a quantised cache, as a verification asks for it. libdump runs it; a build without
// LibTorch has apps/no_torch.cpp instead, which says so.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>

#include "libcalib/artifacts/statistics_file.h"
#include "libcalib/codes.h"
#include "libcalib/end_to_end.h"

namespace oscar {

class TokenRunner {
 public:
  using Progress = std::function<void(int64_t done, int64_t total)>;
  virtual ~TokenRunner() = default;
  virtual std::string place() const = 0;  // where the model runs: "cpu", "cuda:0"
  virtual EndToEndResult exact(const Windows& windows, const Progress& progress) = 0;
  virtual EndToEndResult run(const CacheCodes& codes, const Windows& windows, const Progress& progress) = 0;
  virtual GenerationAgreement generate(const CacheCodes& codes, const Windows& windows, int64_t prompt,
                                       int64_t count, const Progress& progress) = 0;
};

// `model` must be the checkpoint of the statistics (its digest is compared), which must hold the token ids of
// `probes`: std::invalid_argument otherwise. device: "cpu", "cuda" or "cuda:N"; std::runtime_error says why LibTorch
// cannot use that one.
std::unique_ptr<TokenRunner> open_token_runner(const StatisticsReader& statistics,
                                               const std::vector<int>& probes, int64_t first_query,
                                               const std::filesystem::path& model, const std::string& device,
                                               int threads);

}  // namespace oscar
