#include "libcalib/token_runner.h"

#include "formats/error.h"
#include "libdump/end_to_end.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

class ModelRunner : public TokenRunner {
 public:
  ModelRunner(std::unique_ptr<Model> model, std::vector<std::vector<int32_t>> ids, int64_t first_query,
              int threads)
      : model_(std::move(model)), ids_(std::move(ids)), first_query_(first_query), threads_(threads) {}

  std::string place() const override { return model_->device().str(); }
  EndToEndResult exact(const Windows& windows, const Progress& progress) override {
    return runner(windows, progress).exact();
  }
  EndToEndResult run(const CacheCodes& codes, const Windows& windows, const Progress& progress) override {
    return runner(windows, progress).run(codes, progress);
  }
  GenerationAgreement generate(const CacheCodes& codes, const Windows& windows, int64_t prompt, int64_t count,
                               const Progress& progress) override {
    return runner(windows, progress).generate(codes, prompt, count, progress);
  }

 private:
  // The exact model's hidden states do not depend on the windows, but which rows are counted may: one setting
  // at a time.
  const EndToEnd& runner(const Windows& windows, const Progress& progress) {
    if (run_ && windows_ == windows) return *run_;
    run_.reset();
    windows_ = windows;
    run_ = std::make_unique<EndToEnd>(
        *model_, ids_, EndToEndOptions{.windows = windows, .first_query = first_query_, .threads = threads_},
        progress);
    return *run_;
  }

  std::unique_ptr<Model> model_;
  std::vector<std::vector<int32_t>> ids_;
  int64_t first_query_;
  int threads_;
  Windows windows_;
  std::unique_ptr<EndToEnd> run_;
};

}  // namespace

std::unique_ptr<TokenRunner> open_token_runner(const StatisticsReader& statistics,
                                               const std::vector<int>& probes, int64_t first_query,
                                               const std::filesystem::path& path, const std::string& device,
                                               int threads) {
  const auto& header = statistics.header();
  if (header.probe_ids.empty()) {
    throw invalid(
        "{}: the statistics hold no token ids of their probes (written by an older oscar-dump): dump again "
        "for "
        "end-to-end figures",
        statistics.path().string());
  }
  std::vector<std::vector<int32_t>> ids;
  for (const int probe : probes) ids.push_back(header.probe_ids.at(static_cast<size_t>(probe)));
  auto model = open_model(path, precision_of(header.provenance.dtype), torch_device(device));
  if (const std::string digest = model->weights().digest(); digest != header.provenance.model_digest) {
    throw invalid(
        "{}: its digest is {}…, the statistics are of {} with {}…: name the model of the statistics with "
        "--model",
        path.string(), digest.substr(0, 12), header.provenance.model_name,
        header.provenance.model_digest.substr(0, 12));
  }
  return std::make_unique<ModelRunner>(std::move(model), std::move(ids), first_query, threads);
}

}  // namespace oscar
