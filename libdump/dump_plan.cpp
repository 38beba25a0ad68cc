// What a run will write and hold.
#include <algorithm>
#include <numeric>

#include "formats/error.h"
#include "kernels/cpu.h"
#include "libdump/dump.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

int64_t total(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}
int64_t elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies{});
}

// The largest layer, once its matrices are what products read, and what reading it takes on top: the two
// largest, gate and up, are joined from float32 pieces while down is not there yet (and rounded to bfloat16
// where products are); and one tensor's pages of the checkpoint.
void add_weights(MemoryNeeds& needs, const Model& model, Precision precision) {
  const bool halved = precision == Precision::BFloat16 && native_bf16();
  int64_t all = 0, largest_layer = 0, pieces = 0;
  for (int layer = 0; layer < model.config().layers; ++layer) {
    int64_t in_layer = 0, first = 0, second = 0;
    for (const auto& [name, shape] : model.layer_tensors(layer)) {
      const int64_t count = elements(shape);
      in_layer += count;
      if (count > first)
        second = std::exchange(first, count);
      else
        second = std::max(second, count);
    }
    all += in_layer;
    largest_layer = std::max(largest_layer, in_layer);
    pieces = std::max(pieces, first + second);
  }
  const int64_t stored = std::min<int64_t>(4, 1 + model.weights().bytes() / std::max<int64_t>(all, 1));
  needs.weights = largest_layer * (halved ? 2 : 4);
  needs.loading = pieces * (halved ? 7 : 2) + pieces * stored / 2;
}

// Of one sequence in a layer: hidden states normed and updated, q, k, v and their joined product, the
// attention output, the three wide rows of the MLP; and importances, score rows and sums of its statistics.
int64_t activations(const ModelConfig& config, const LayerShape& s, int64_t tokens, bool scores) {
  const int64_t qkv = int64_t{s.q_heads} * s.dim_k + int64_t{s.kv_heads} * (s.dim_k + s.dim_v),
                out = int64_t{s.q_heads} * s.dim_v;
  const int64_t floats = int64_t{config.hidden} * 4 + qkv * 2 + out * 2 + int64_t{config.intermediate} * 3;
  const int64_t of_scores = scores ? int64_t{s.q_heads} * 5 + int64_t{s.kv_heads} * 8 : 0;
  return tokens * (floats + of_scores) * 4;
}

}  // namespace

void check_options(const DumpOptions& options, at::Device device) {
  if (!device.is_cpu() && options.memory > 0)
    throw invalid("--memory bounds a run on the CPU; a run on a GPU prints what it holds there (--plan)");
  if (!options.shard.whole() && (options.perplexity || !options.save_qkv.empty()))
    throw invalid("--shard {}: {} is of all sequences in one process: run it without workers",
                  options.shard.text(), options.perplexity ? "--perplexity" : "--save-qkv");
  if (!options.save_qkv.empty() && std::filesystem::exists(options.save_qkv) &&
      !std::filesystem::is_empty(options.save_qkv))
    throw invalid("{}: --save-qkv wants a folder that is new or empty", options.save_qkv.string());
}

MemoryNeeds needs_of(const Model& model, const SequenceSet& run, const DumpOptions& options) {
  const ModelConfig& config = model.config();
  const SequenceSet share = share_of(run, options.shard);
  const auto calibration = lengths(share.calibration), probes = lengths(share.probes);
  int64_t longest = 0, longest_calibration = 0, longest_probe = 0;
  for (const int64_t n : calibration) longest_calibration = std::max(longest_calibration, n);
  for (const int64_t n : probes) longest_probe = std::max(longest_probe, n);
  longest = std::max(longest_calibration, longest_probe);
  const int64_t tokens = total(calibration), probe_tokens = total(probes);

  MemoryNeeds needs;
  needs.layers = config.layers;
  needs.threads = std::min(options.threads, static_cast<int>(calibration.size() + probes.size()));
  add_weights(needs, model, options.precision);
  needs.hidden = (tokens + probe_tokens) * config.hidden * 4;
  needs.longest_hidden = longest * config.hidden * 4;
  needs.text = 3 * 4 * (run.tokens() + run.probe_tokens()) + int64_t{config.vocabulary} * 400;
  for (const RopeConfig& rope : config.ropes) needs.text += longest * rope.dim * 4;
  const auto element = static_cast<int64_t>(info(dtype_of(options.precision)).size());
  for (const LayerShape& s : config.attention) {
    const int64_t kv = int64_t{s.kv_heads} * (s.dim_k + s.dim_v), q = int64_t{s.q_heads} * s.dim_k;
    int64_t sums = 0;
    for (const SumInfo& info : sum_table()) sums += LayerSums(s).size_per_head(info.sum) * s.kv_heads * 8;
    const int64_t metrics = 3 * int64_t{s.q_heads} * s.dim_v * s.dim_v * 8;
    const int64_t sampled = std::min(options.rows, tokens) * (kv * 4 + 12 * s.kv_heads + 16);
    // The dataset that is being written is there once more, as it is stored.
    const int64_t writing = longest_probe * std::max(q, kv) * (4 + element) + sampled;
    if (options.proxy) {
      needs.rows = std::max(needs.rows, tokens * kv * 4);
      needs.longest_rows = std::max(needs.longest_rows, longest_calibration * kv * 4);
    }
    needs.activations = std::max(needs.activations, activations(config, s, longest, options.scores) + sums);
    needs.results =
        std::max(needs.results, 5 * sums + metrics + sampled + probe_tokens * (q + kv) * 4 + writing);
    needs.assembly =
        std::max(needs.assembly, 3 * sums + 3 * sampled + probe_tokens * (q + kv) * 4 + 2 * writing);
  }
  if (options.perplexity)
    needs.assembly = std::max(needs.assembly, int64_t{config.vocabulary} * (config.hidden + 3 * 512) * 4);
  return needs;
}

DevicePlan plan_device(const Model& model, const SequenceSet& run, const DumpOptions& options) {
  const ModelConfig& config = model.config();
  const SequenceSet share = share_of(run, options.shard);
  const auto element = static_cast<int64_t>(info(dtype_of(options.precision)).size());
  int64_t longest = 0;
  for (const auto* sequences : {&share.calibration, &share.probes}) {
    for (const auto& ids : *sequences) longest = std::max(longest, static_cast<int64_t>(ids.size()));
  }
  DevicePlan plan;
  plan.free = free_memory(model.device());
  for (int layer = 0; layer < config.layers; ++layer) {
    int64_t all = 0, largest = 0;
    for (const auto& [name, shape] : model.layer_tensors(layer)) {
      all += elements(shape);
      largest = std::max(largest, elements(shape));
    }
    // While they are joined: as stored, in float32 and as they stay.
    plan.weights = std::max(plan.weights, 2 * all * element + 3 * largest * 4);
  }
  plan.hidden = (share.tokens() + share.probe_tokens()) * config.hidden * 4;
  for (const LayerShape& s : config.attention) {
    const int64_t kv = int64_t{s.kv_heads} * (s.dim_k + s.dim_v);
    int64_t sums = 0;
    for (const SumInfo& info : sum_table()) sums += LayerSums(s).size_per_head(info.sum) * s.kv_heads * 8;
    if (options.proxy) plan.rows = std::max(plan.rows, 2 * share.tokens() * kv * element);
    // The second pass: k and v of a sequence in double, and a product of each.
    const int64_t second = options.proxy ? longest * kv * 2 * 8 : 0;
    // Scores: a block of them for LibTorch's operations, or partial sums of the kernels.
    const int64_t scores = options.scores ? (int64_t{1} << 26) * 4 * 8 + longest * s.q_heads * s.dim_v * 12 : 0;
    plan.working =
        std::max(plan.working, activations(config, s, longest, options.scores) + 10 * sums + scores + second);
  }
  if (plan.peak() > plan.free)
    throw invalid("{}: {}: run fewer --tokens at a time (whole runs of other text merge in oscar-fit), deal them "
                  "out with --shard, or free the device",
                  config.path, plan.text());
  return plan;
}

std::string DevicePlan::text() const {
  const auto gib = [](int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); };
  return fmt::format("on the GPU weights of two layers {}, hidden states {}, k and v of two layers {}, a sequence "
                     "at work {}; {} in all, {} free",
                     gib(weights), gib(hidden), gib(rows), gib(working), gib(peak()), gib(free));
}

DumpPlan plan(const Model& model, const SequenceSet& set, const DumpOptions& options) {
  const ModelConfig& config = model.config();
  const SequenceSet share = share_of(set, options.shard);
  DumpPlan p;
  p.calibration_tokens = share.tokens();
  p.probe_tokens = share.probe_tokens();
  p.sequences = static_cast<int64_t>(share.calibration.size() + share.probes.size());
  p.layers = static_cast<int64_t>(config.attention.size());
  const auto element = static_cast<int64_t>(info(dtype_of(options.precision)).size());
  for (const LayerShape& shape : config.attention) {
    const int64_t kv = int64_t{shape.kv_heads} * (shape.dim_k + shape.dim_v),
                  all = kv + int64_t{shape.q_heads} * shape.dim_k;
    const LayerSums sums(shape);
    for (const SumInfo& info : sum_table())
      p.sums += static_cast<int64_t>(sums.values(info.sum).size_bytes());
    p.sums += int64_t{shape.kv_heads} * shape.dim_v * shape.dim_v * 8;
    // Rows are sampled from the whole run.
    p.rows += std::min(options.rows, set.tokens()) * p.calibration_tokens /
              std::max<int64_t>(set.tokens(), 1) *
              (kv * element + (options.scores ? 12 * shape.kv_heads : 0) + 16);
    p.probes += p.probe_tokens * all * element;
    if (options.proxy && !options.shard.whole()) p.proxy += p.calibration_tokens * kv * element;
    p.raw += p.calibration_tokens * all * element;
  }
  if (model.device().is_cpu())
    p.memory = plan_memory(needs_of(model, set, options), options.memory);
  else
    p.device = plan_device(model, set, options);
  return p;
}

}  // namespace oscar
