#include "libdump/end_to_end.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <mutex>

#include "formats/error.h"
#include "libcalib/setup.h"
#include "libcalib/verify.h"
#include "libdump/generation.h"
#include "libdump/quantised_attention.h"
#include "libdump/token_loss.h"

namespace oscar {

namespace {

// A run limits LibTorch, and with it OpenMP, to one thread a sequence; afterwards the caller has its own
// number again.
class ThreadsKept {
 public:
  ThreadsKept() = default;
  ~ThreadsKept() { at::set_num_threads(before_); }
  ThreadsKept(const ThreadsKept&) = delete;
  ThreadsKept& operator=(const ThreadsKept&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// Counts what the workers report.
std::function<void(int64_t)> counter(const EndToEnd::Progress& progress, int64_t total) {
  if (!progress) return [](int64_t) {};
  struct State {
    std::mutex mutex;
    int64_t done = 0;
  };
  return [progress, total, state = std::make_shared<State>()](int64_t n) {
    const std::lock_guard lock(state->mutex);
    state->done += n;
    progress(state->done, total);
  };
}

void check(const ModelConfig& config, const std::vector<std::vector<int32_t>>& probes,
           const EndToEndOptions& options) {
  if (probes.empty()) throw invalid("end-to-end: no probes: run oscar-dump with --probe on held-out text");
  const auto& [sink, recent] = options.windows;
  if (sink < 0 || recent < 0)
    throw invalid("windows sink {}, recent {}: expected numbers from 0", sink, recent);
  if (std::ranges::adjacent_find(options.buckets, std::greater_equal{}) != options.buckets.end())
    throw invalid("end-to-end: buckets of positions begin at {}: expected ascending positions",
                  fmt::join(options.buckets, ", "));
  for (size_t i = 0; i < probes.size(); ++i) {
    const auto tokens = static_cast<int64_t>(probes[i].size());
    if (options.first_query < 0 || options.first_query >= tokens)
      throw invalid("first counted position {}: probe {} has {} tokens", options.first_query, i, tokens);
    for (const int32_t id : probes[i]) {
      if (id < 0 || id >= config.vocabulary)
        throw invalid("probe {}: token id {}: {} has ids below {}: the probes are of another model", i, id,
                      config.path, config.vocabulary);
    }
  }
}

void check_row(const ModelConfig& config, const CacheCodes& codes) {
  check_codes(codes.k, Side::K, config.attention, codes.name);
  check_codes(codes.v, Side::V, config.attention, codes.name);
}

std::vector<int64_t> default_edges(const std::vector<std::vector<int32_t>>& probes, int64_t first_query) {
  size_t longest = 0;
  for (const auto& ids : probes) longest = std::max(longest, ids.size());
  std::vector<int64_t> edges;
  for (const PositionBucket& bucket : position_buckets(first_query, static_cast<int64_t>(longest))) {
    if (bucket.first > first_query) edges.push_back(bucket.first);
  }
  return edges;
}

int64_t count_tokens(const std::vector<std::vector<int32_t>>& probes) {
  int64_t tokens = 0;
  for (const auto& ids : probes) tokens += static_cast<int64_t>(ids.size());
  return tokens;
}

}  // namespace

EndToEnd::EndToEnd(Model& model, std::vector<std::vector<int32_t>> probes, EndToEndOptions options,
                   const Progress& progress)
    : model_(model), probes_(std::move(probes)), options_(std::move(options)) {
  check(model.config(), probes_, options_);
  if (options_.buckets.empty()) options_.buckets = default_edges(probes_, options_.first_query);
  const ThreadsKept kept;
  exact_ = forward(nullptr, counter(progress, count_tokens(probes_) * model.config().layers));
}

EndToEndResult EndToEnd::exact() const {
  const ThreadsKept kept;
  return measure(nullptr, {});
}

EndToEndResult EndToEnd::run(const CacheCodes& codes, const Progress& progress) const {
  check_row(model_.config(), codes);
  const int64_t tokens = count_tokens(probes_),
                counted = tokens - options_.first_query * static_cast<int64_t>(probes_.size());
  const ThreadsKept kept;
  const auto step = counter(progress, tokens * model_.config().layers + counted);
  const std::vector<at::Tensor> changed = forward(&codes, step);
  return measure(&changed, step);
}

GenerationAgreement EndToEnd::generate(const CacheCodes& codes, int64_t prompt, int64_t count,
                                       const Progress& progress) const {
  check_row(model_.config(), codes);
  if (!model_.device().is_cpu())
    throw invalid("generating tokens: the model is on a GPU, a growing cache is the CPU's");
  if (count < 1) throw invalid("generate {} tokens: expected at least 1", count);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < probes_.size(); ++i) {
    const auto tokens = static_cast<int64_t>(probes_[i].size());
    if (prompt < 1 || prompt > tokens)
      throw invalid("prompt of {} tokens: probe {} has {}", prompt, i, tokens);
    prompts.emplace_back(probes_[i].begin(), probes_[i].begin() + prompt);
  }
  const ThreadsKept kept;
  const Generator generator(model_, prompt + count, options_.threads, options_.deterministic);
  const auto exact = generator.greedy(prompts, count, nullptr, options_.windows, {});
  const auto changed = generator.greedy(prompts, count, &codes, options_.windows,
                                        counter(progress, count * static_cast<int64_t>(prompts.size())));
  GenerationAgreement result{.prompt = prompt, .count = count};
  for (size_t i = 0; i < prompts.size(); ++i) {
    result.divergence.push_back(std::ranges::mismatch(exact[i], changed[i]).in1 - exact[i].begin());
    for (size_t t = 0; t < exact[i].size(); ++t) result.agreement += exact[i][t] == changed[i][t];
  }
  result.agreement /= static_cast<double>(count * static_cast<int64_t>(prompts.size()));
  return result;
}

std::vector<at::Tensor> EndToEnd::forward(const CacheCodes* codes,
                                          const std::function<void(int64_t)>& step) const {
  Decoder::Attend attend;
  if (!model_.device().is_cpu()) {
    // The exact model's attention, too: fused attention rounds otherwise, and that would count as a loss.
    attend = [&](int64_t, const AttentionRows& rows, float*) {
      quantised_attention_on_device(codes, options_.windows, rows, options_.threads);
    };
  } else if (codes) {
    attend = [&](int64_t, const AttentionRows& rows, float* o) {
      quantised_attention(*codes, options_.windows, rows, o);
    };
  }
  Decoder decoder(model_, probes_, {options_.threads, options_.deterministic});
  while (!decoder.done())
    decoder.run_layer([&](int64_t, const AttentionRows& rows) { step(rows.tokens); }, attend);
  return decoder.hidden();
}

EndToEndResult EndToEnd::measure(const std::vector<at::Tensor>* changed,
                                 const std::function<void(int64_t)>& step) const {
  std::vector<std::vector<TokenLoss>> losses;
  for (size_t i = 0; i < probes_.size(); ++i) {
    losses.push_back(token_losses(model_, probes_[i], exact_[i], changed ? &(*changed)[i] : nullptr,
                                  options_.first_query, options_.threads, step));
  }
  return summarise(losses, options_.first_query, options_.buckets);
}

}  // namespace oscar
