#include "libcalib/fit.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "formats/error.h"
#include "libcalib/allocation.h"
#include "libcalib/artifacts/objective.h"
#include "libcalib/fit_trial.h"
#include "libcalib/parallel.h"

namespace oscar {
namespace {

std::string job_name(const LayerShape& shape, Side side, const SideMethod& method) {
  const std::string what =
      method.options.target.empty() ? std::string(method.method->name) : method.options.target;
  return fmt::format("layer {}, {} ({})", shape.layer, side_name(side), what);
}

void check_statistics(const LayerStatistics& layer, Side side, const SideMethod& method, const FitRun& run) {
  const bool plain_hadamard = method.algorithm->name == "rotation" && method.options.target.empty() &&
                              method.options.centre == Centre::None;
  if (method.algorithm->needs == kNothing || plain_hadamard) return;
  const LayerSums& sums = layer.sums;
  const std::string name = job_name(sums.shape(), side, method);
  if (sums.tokens <= 0) throw failure("{}: no tokens were counted; the statistics are empty", name);
  if (!sums.finite()) throw failure("{}: the sums are not finite; the dump overflowed or is corrupt", name);
  const int64_t least = 4 * int64_t{sums.shape().dim(side)};
  if (sums.tokens < least && !run.allow_undersampled) {
    throw wanting(
        "{}: {} tokens per head, expected at least 4 D = {}; calibrate on more text, or allow an "
        "under-sampled fit",
        name, sums.tokens, least);
  }
  if (side == Side::V && method.algorithm->needs & kMetric && layer.value_metric.empty()) {
    throw invalid("{}: method {} needs W_O, which oscar-dump sees and a raw dump does not have", name,
                  method.method->name);
  }
}

LayerFit fit_side(const LayerStatistics& layer, Side side, const SideMethod& method, const FitRun& run) {
  check_statistics(layer, side, method, run);
  try {
    MethodOptions options = method.options;
    options.search = &run.search;
    LayerFit fit = method.algorithm->fit(layer, side, options);
    fit.check.layer = layer.sums.shape().layer;
    fit.check.side = side;
    for (const HeadCode& head : fit.heads) {
      // The codec that a rotation file stands for is the engine's business: other engines read the file too.
      if (head.codec->name == MethodOptions{}.codec && head.options.groups == 1) continue;
      head.codec->encode(nullptr, 0, layer.sums.shape().dim(side), head.options);  // for its refusals
    }
    try_on_statistics(layer, side, fit, method.method->name);
    return fit;
  } catch (const std::invalid_argument& error) {
    // What refuses a head dim or a codec does not know whose it is, and layers differ.
    if (std::string_view(error.what()).starts_with("layer ")) throw;
    throw invalid("{}: {}", job_name(layer.sums.shape(), side, method), error.what());
  }
}

// One line a side for the whole model, where one rotation a layer gives up much of what the heads' own would
// keep.
void warn_shared(FitResult& result, Side side) {
  constexpr double kMean = 0.1, kWorst = 0.25;
  double sum = 0;
  int count = 0;
  const FitCheck* worst = nullptr;
  for (const FitCheck& check : result.checks) {
    if (check.side != side) continue;
    sum += check.shared_loss;
    ++count;
    if (!worst || check.shared_loss > worst->shared_loss) worst = &check;
  }
  if (!worst || (sum / count < kMean && worst->shared_loss < kWorst)) return;
  result.warnings.push_back(
      fmt::format("{}: one rotation a layer keeps {:.0f} % less energy in its top D/4 directions than one "
                  "per KV head (worst: layer {}, "
                  "{:.0f} %); a rotation per head (v2 file) loses nothing",
                  side_name(side), 100 * sum / count, worst->layer, 100 * worst->shared_loss));
}

// Few rows a codeword are learned by heart, and lose more than they promise on other text.
void warn_rows(FitResult& result) {
  constexpr double kFew = 32;
  double least = 0;
  for (const FitCheck& check : result.checks) {
    if (check.rows_per_word > 0)
      least = least > 0 ? std::min(least, check.rows_per_word) : check.rows_per_word;
  }
  if (least == 0 || least >= kFew) return;
  result.warnings.push_back(fmt::format(
      "codebooks were trained on {:.0f} rows a codeword, expected at least {:.0f}: sample more (oscar-dump "
      "--rows 16384)",
      least, kFew));
}

struct Job {
  const LayerStatistics* layer;
  LayerFit k, v;
};
// Heads [first, last) of one side of a layer that take the same of their candidates.
struct Item {
  LayerFit* fit;
  int layer, first, last;
  Side side;
  int dim;
  Candidate& candidate(int head, size_t choice) const {
    return fit->candidates[static_cast<size_t>(head)][choice];
  }
  std::vector<Choice> choices() const {
    std::vector<Choice> sums(fit->candidates[static_cast<size_t>(first)].size());
    for (size_t c = 0; c < sums.size(); ++c) {
      for (int h = first; h < last; ++h) {
        sums[c].bits += candidate(h, c).bits;
        sums[c].loss += candidate(h, c).loss;
      }
    }
    return sums;
  }
};

std::string name_of(const HeadCode& code) {
  return code.options.codebook ? shape_name(*code.options.codebook) : std::string(code.codec->name);
}

// The least loss of one code that every item takes alike, within the budget; 0 when none fits.
double uniform_loss(const std::vector<Item>& items, const std::vector<std::vector<Choice>>& choices,
                    double budget) {
  double best = 0;
  for (size_t first = 0; first < choices[0].size(); ++first) {
    const std::string name = name_of(items[0].candidate(items[0].first, first).code);
    double bits = 0, loss = 0;
    bool all = true;
    for (size_t i = 0; i < items.size() && all; ++i) {
      size_t c = 0;
      while (c < choices[i].size() && name_of(items[i].candidate(items[i].first, c).code) != name) ++c;
      all = c < choices[i].size();  // false: a shape that does not divide this head dim
      if (!all) break;
      bits += choices[i][c].bits;
      loss += choices[i][c].loss;
    }
    if (all && bits <= budget * (1 + 1e-12) && (best == 0 || loss < best)) best = loss;
  }
  return best;
}

// Chooses among the candidates of `items` for a budget of `bits` a channel, and says so in `result`.
void choose(const std::vector<Item>& items, double bits, FitResult& result) {
  std::vector<std::vector<Choice>> choices;
  double channels = 0, least = 0;
  for (const Item& item : items) {
    choices.push_back(item.choices());
    channels += item.dim * (item.last - item.first);
    least += std::ranges::min(choices.back(), {}, &Choice::bits).bits;
  }
  const double budget = bits * channels;
  if (least > budget * (1 + 1e-9))
    throw invalid("bits={}: the least that these codes can take is {:.4g} bits a channel", bits,
                  std::ceil(1e3 * least / channels) / 1e3);
  result.uniform_loss += uniform_loss(items, choices, budget);
  const auto chosen = allocate(choices, budget);
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    for (int h = item.first; h < item.last; ++h) {
      Candidate& candidate = item.candidate(h, static_cast<size_t>(chosen[i]));
      result.plan.push_back(
          {item.layer, h, item.side, name_of(candidate.code), candidate.bits / item.dim, candidate.loss});
      item.fit->heads.push_back(std::move(candidate.code));
    }
  }
}

// Keys and values share one budget when they were given the same, else each has its own.
void choose_all(std::vector<Job>& jobs, const Method& method, FitResult& result) {
  std::vector<Item> k, v;
  for (Job& job : jobs) {
    const LayerShape& shape = job.layer->sums.shape();
    for (auto [side, fit, items] : {std::tuple{Side::K, &job.k, &k}, {Side::V, &job.v, &v}}) {
      const auto heads = static_cast<int>(fit->candidates.size());
      for (int h = 0; h < heads; h = items->back().last)
        items->push_back({fit, shape.layer, h, fit->tied ? heads : h + 1, side, shape.dim(side)});
    }
  }
  if (!k.empty() && !v.empty() && method.k.options.bits == method.v.options.bits) {
    k.insert(k.end(), v.begin(), v.end());
    v.clear();
  }
  if (!k.empty()) choose(k, method.k.options.bits, result);
  if (!v.empty()) choose(v, method.v.options.bits, result);
}

}  // namespace

FitResult fit(const FitInput& input, const Method& method, const FitRun& run) {
  if (input.layers.empty()) throw invalid("fit: there are no layers in the statistics");
  std::vector<Job> jobs;
  for (const auto& [id, layer] : input.layers) jobs.push_back({&layer, {}, {}});
  std::mutex reading;
  int64_t done = 0;
  parallel_for(static_cast<int64_t>(jobs.size()), run.threads, [&](int64_t i) {
    Job& job = jobs[static_cast<size_t>(i)];
    LayerStatistics with_rows;
    const LayerStatistics* layer = job.layer;
    if (method.needs() & kRows && input.rows) {
      with_rows = *layer;
      const std::lock_guard lock(reading);
      with_rows.rows = input.rows(layer->sums.shape().layer);
      layer = &with_rows;
    }
    job.k = fit_side(*layer, Side::K, method.k, run);
    job.v = fit_side(*layer, Side::V, method.v, run);
    const std::lock_guard lock(reading);
    if (run.progress) run.progress(++done, static_cast<int64_t>(jobs.size()));
  });

  FitResult result;
  result.codes.name = method.name;
  result.codes.k = {Side::K, method.k.algorithm->objective(Side::K, method.k.options), {}};
  result.codes.v = {Side::V, method.v.algorithm->objective(Side::V, method.v.options), {}};
  choose_all(jobs, method, result);
  for (Job& job : jobs) {
    for (auto [side, fitted] : {std::pair{&result.codes.k, &job.k}, {&result.codes.v, &job.v}}) {
      side->layers.emplace(fitted->check.layer, std::move(fitted->heads));
      result.checks.push_back(fitted->check);
      result.warnings.insert(result.warnings.end(), fitted->warnings.begin(), fitted->warnings.end());
    }
  }
  for (const Side side : {Side::K, Side::V}) warn_shared(result, side);
  warn_rows(result);
  return result;
}

bool has_rotation_file(const SideCodes& codes) {
  return std::ranges::all_of(codes.layers, [](const auto& layer) {
    return std::ranges::all_of(layer.second, [](const HeadCode& head) {
      return !head.options.codebook && head.transform.forward.size() > 0;
    });
  });
}

RotationSet rotation_set(const SideCodes& codes) {
  if (!has_rotation_file(codes)) {
    throw invalid(
        "the {} codes '{}' are no rotation: a rotation file cannot hold them, codes.safetensors does",
        side_name(codes.side), codes.objective);
  }
  RotationSet set;
  set.side = codes.side;
  set.objective = codes.objective;
  set.composition = parse_objective(codes.objective).composition;
  // One matrix with a mean for each head is still one rotation a layer.
  set.per_head = std::ranges::any_of(codes.layers, [](const auto& layer) {
    const auto& heads = layer.second;
    return heads.size() > 1 && std::ranges::any_of(heads, [&](const HeadCode& head) {
             return !head.transform.mean.size() || head.transform.forward != heads[0].transform.forward;
           });
  });
  for (const auto& [id, heads] : codes.layers) {
    LayerRotation& layer = set.layers[id];
    for (const HeadCode& head : heads) {
      const Transform& transform = head.transform;
      if (transform.mean.size()) layer.means.push_back(transform.mean);
      if (!set.per_head && !layer.rotation.empty()) continue;
      layer.rotation.push_back(transform.forward);
      if (transform.inverse.size()) layer.inverse.push_back(transform.inverse);
      if (head.eigenvalues.size()) layer.eigenvalues.push_back(head.eigenvalues);
    }
  }
  return set;
}

}  // namespace oscar
