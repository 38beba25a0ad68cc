#include "libcalib/clip.h"

#include <algorithm>
#include <random>

#include "formats/error.h"
#include "kernels/int2.h"
#include "libcalib/attention_loss.h"
#include "libcalib/setup.h"

namespace oscar {
namespace {

constexpr int64_t kBlock = 64;  // queries measured side by side

struct Block {
  int64_t first, last;
};

// `queries` positions in blocks of kBlock, one block in each equal stretch of [begin, tokens), its place in
// the stretch drawn from the seed: the sample covers short and long contexts whatever the seed.
std::vector<Block> sample_blocks(int64_t begin, int64_t tokens, int64_t queries, uint64_t seed) {
  if (tokens - begin <= queries) return {{begin, tokens}};
  const int64_t size = std::min(kBlock, queries), count = std::min(queries / size, (tokens - begin) / size);
  std::mt19937_64 engine(seed);
  std::vector<Block> blocks;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t low = begin + (tokens - begin) * i / count,
                  high = begin + (tokens - begin) * (i + 1) / count;
    // The engine's own integers: std::uniform_int_distribution differs between standard libraries.
    const auto first = low + static_cast<int64_t>(engine() % static_cast<uint64_t>(high - low - size + 1));
    blocks.push_back({first, first + size});
  }
  return blocks;
}

std::string ratio_name(double ratio) {
  return ratio <= 0 ? "off" : fmt::format("{}", ratio);
}

// Ratios that some layer tells apart. One of each kind stays: the hand ratio, else the smallest; "off" stands
// for all that clip nothing, unless the codec refuses to run without a ratio.
std::vector<double> distinct_ratios(const std::vector<double>& asked, Side side, int groups,
                                    const std::vector<LayerShape>& shapes, std::vector<std::string>& notes) {
  const double hand = side == Side::K ? kHandRatioK : kHandRatioV;
  std::vector<double> ratios = asked;
  ratios.push_back(hand);
  ratios.push_back(groups == 1 || groups % 4 == 0 ? 0.0 : 1.0);
  std::sort(ratios.begin(), ratios.end());
  ratios.erase(std::unique(ratios.begin(), ratios.end()), ratios.end());

  std::map<std::vector<int>, std::vector<double>> kinds;  // by the clip index of every layer
  for (const double ratio : ratios) {
    std::vector<int> kind;
    for (const auto& shape : shapes) {
      const int index = int2::clip_index(ratio, shape.dim(side));
      kind.push_back(index < 0 ? shape.dim(side) - 1 : index);
    }
    kinds[kind].push_back(ratio);
  }
  std::vector<double> kept;
  for (const auto& [kind, same] : kinds) {
    kept.push_back(std::ranges::find(same, hand) != same.end() ? hand : same.front());
    if (same.size() == 1) continue;
    std::vector<std::string> names;
    for (const double ratio : same) names.push_back(ratio_name(ratio));
    notes.push_back(fmt::format("{}: ratios {} clip at the same element of a row; measured once, as {}",
                                side_name(side), fmt::join(names, ", "), ratio_name(kept.back())));
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

void finish(ClipCurve& curve, double hand) {
  const auto best = std::min_element(curve.loss.begin(), curve.loss.end()) - curve.loss.begin();
  curve.best_ratio = curve.ratio[static_cast<size_t>(best)];
  curve.best_loss = curve.loss[static_cast<size_t>(best)];
  const auto at = std::ranges::find(curve.ratio, hand) - curve.ratio.begin();
  curve.hand_ratio = hand;
  curve.hand_loss = curve.loss[static_cast<size_t>(at)];
}

ClipCurve model_curve(const std::map<int, ClipCurve>& layers, double hand) {
  ClipCurve mean{.ratio = layers.begin()->second.ratio, .loss = {}};
  mean.loss.resize(mean.ratio.size());
  for (const auto& [id, curve] : layers) {
    for (size_t i = 0; i < mean.loss.size(); ++i)
      mean.loss[i] += curve.loss[i] / static_cast<double>(layers.size());
  }
  finish(mean, hand);
  return mean;
}

// The losses of one probe of one layer at the i-th ratios of K and V. The kernel reports keys alone and
// values alone from one pass, so the two sides are searched together.
struct Pair {
  double k, v;
};
Pair losses(const LayerShape& shape, const std::vector<HeadRows>& heads, const CacheCodes& codes,
            double k_ratio, double v_ratio, const Windows& windows, const std::vector<Block>& blocks) {
  AttentionLoss sum;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const auto& rows = heads[static_cast<size_t>(head)];
    HeadCode k = codes.k.of(shape.layer, head), v = codes.v.of(shape.layer, head);
    k.options.clip = k_ratio;
    v.options.clip = v_ratio;
    const HistoryCodes k_codes(k, rows.k.data(), rows.tokens, shape.dim_k, windows);
    const HistoryCodes v_codes(v, rows.v.data(), rows.tokens, shape.dim_v, windows);
    for (const auto& block : blocks)
      sum.add(attention_loss(shape, rows, v.transform, windows, block.first, block.last, k_codes, v_codes));
  }
  return {sum.kl / static_cast<double>(sum.count),
          sum.output_error_v == 0 ? 0 : sum.output_error_v / sum.output_power};
}

}  // namespace

ClipReport search_clip(const StatisticsReader& statistics, const RotationSet* k, const RotationSet* v,
                       const CodecInfo& codec, int groups, const ClipOptions& options,
                       const std::function<void(int64_t, int64_t)>& progress) {
  const auto& header = statistics.header();
  const auto& shapes = header.layers;
  if (shapes.empty()) throw invalid("{}: the statistics have no layers", statistics.path().string());
  if (!codec.clips) throw invalid("codec {} clips nothing: there is no ratio to search", codec.name);
  if (options.queries < 1) throw invalid("clip search over {} queries: expected at least 1", options.queries);
  for (const double ratio : options.ratios) {
    if (!(ratio >= 0 && ratio <= 1)) throw invalid("clip ratio {}: expected 0 (off) to 1", ratio);
  }
  check_probes(header, options.probes, options.windows, options.first_query);
  const CodecOptions unclipped{.groups = groups, .clip = 1.0};
  const CacheCodes codes{"clip search", scalar_codes(Side::K, shapes, k, codec, unclipped),
                         scalar_codes(Side::V, shapes, v, codec, unclipped)};
  check_codes(codes.k, Side::K, shapes, codes.name);
  check_codes(codes.v, Side::V, shapes, codes.name);

  ClipReport report{.provenance = header.provenance,
                    .objective_k = codes.k.objective,
                    .objective_v = codes.v.objective,
                    .codec = std::string(codec.name),
                    .groups = groups,
                    .group_size_k = shapes.front().dim_k / groups,
                    .group_size_v = shapes.front().dim_v / groups,
                    .options = options};
  // Queries without a history lose nothing at any ratio.
  report.options.first_query = std::max(options.first_query, options.windows.sink + options.windows.recent);
  const auto k_ratios = distinct_ratios(options.ratios, Side::K, groups, shapes, report.notes);
  const auto v_ratios = distinct_ratios(options.ratios, Side::V, groups, shapes, report.notes);
  const size_t steps = std::max(k_ratios.size(), v_ratios.size());
  const auto total = static_cast<int64_t>(shapes.size() * options.probes.size() * steps);
  int64_t done = 0;
  for (const auto& shape : shapes) {
    ClipCurve k_curve{.ratio = k_ratios, .loss = std::vector<double>(k_ratios.size())};
    ClipCurve v_curve{.ratio = v_ratios, .loss = std::vector<double>(v_ratios.size())};
    for (const int index : options.probes) {
      const Probe probe = load_probe(statistics, shape, index);
      const auto blocks = sample_blocks(report.options.first_query, probe.tokens, options.queries,
                                        options.seed + static_cast<uint64_t>(index));
      std::vector<HeadRows> heads;
      for (int head = 0; head < shape.kv_heads; ++head) {
        heads.push_back(head_rows(shape, probe, head, codes.k.of(shape.layer, head).transform,
                                  codes.v.of(shape.layer, head).transform));
      }
      for (size_t i = 0; i < steps; ++i) {
        const size_t ki = std::min(i, k_ratios.size() - 1), vi = std::min(i, v_ratios.size() - 1);
        const auto loss = losses(shape, heads, codes, k_ratios[ki], v_ratios[vi], options.windows, blocks);
        const auto share = 1.0 / static_cast<double>(options.probes.size());
        if (i == ki) k_curve.loss[i] += share * loss.k;
        if (i == vi) v_curve.loss[i] += share * loss.v;
        if (progress) progress(++done, total);
      }
    }
    finish(k_curve, kHandRatioK);
    finish(v_curve, kHandRatioV);
    report.k[shape.layer] = std::move(k_curve);
    report.v[shape.layer] = std::move(v_curve);
  }
  report.model_k = model_curve(report.k, kHandRatioK);
  report.model_v = model_curve(report.v, kHandRatioV);
  return report;
}

}  // namespace oscar
