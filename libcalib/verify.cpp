#include "libcalib/verify.h"

#include <algorithm>
#include <array>

#include "formats/error.h"
#include "kernels/cpu.h"
#include "libcalib/attention_loss.h"
#include "libcalib/geometry.h"
#include "libcalib/setup.h"

namespace oscar {

std::span<const DiagnosticInfo> diagnostic_table() {
  static constexpr std::array table = {
#define OSCAR_DIAGNOSTIC(field) DiagnosticInfo{#field, &LayerDiagnostics::field},
#include "libcalib/diagnostics.def"
#undef OSCAR_DIAGNOSTIC
  };
  return table;
}

namespace {

double ratio(double error, double power) {
  return error == 0 ? 0 : error / power;
}

struct Measured {
  LayerDiagnostics diagnostics;
  CodeError k, v;
  std::vector<AttentionLoss> buckets;
};

// One row on one probe of one layer.
Measured measure(const CacheCodes& row, const LayerShape& shape, const Probe& probe, const VerifyOptions& options,
                 const std::vector<PositionBucket>& buckets) {
  const Windows& windows = options.windows;
  Measured result;
  auto& d = result.diagnostics;
  result.buckets.resize(buckets.size());
  AttentionLoss layer;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const HeadCode &k = row.k.of(shape.layer, head), &v = row.v.of(shape.layer, head);
    const HeadRows rows = head_rows(shape, probe, head, k.transform, v.transform);
    check_transforms(shape, probe, head, k.transform, v.transform,
                     fmt::format("row '{}', layer {}, KV head {}", row.name, shape.layer, head));
    const HistoryCodes k_codes(k, rows.k.data(), rows.tokens, shape.dim_k, windows);
    const HistoryCodes v_codes(v, rows.v.data(), rows.tokens, shape.dim_v, windows);
    result.k.add(code_error(k_codes, k, rows.k.data(), shape.dim_k));
    result.v.add(code_error(v_codes, v, rows.v.data(), shape.dim_v));

    AttentionLoss loss;
    for (size_t b = 0; b < buckets.size(); ++b) {
      const int64_t last = std::min(buckets[b].last, rows.tokens);
      if (buckets[b].first >= last) continue;
      const AttentionLoss part =
          attention_loss(shape, rows, v.transform, windows, buckets[b].first, last, k_codes, v_codes, options.device);
      loss.add(part);
      result.buckets[b].add(part);
    }
    d.head_kl.push_back(loss.kl / static_cast<double>(loss.count));
    d.head_output_error.push_back(ratio(loss.output_error, loss.output_power));
    d.flatness_k += flatness(loss.q_power) / shape.kv_heads;
    d.flatness_v += flatness(loss.o_power) / shape.kv_heads;
    layer.add(loss);
  }
  d.layer = shape.layer;
  d.attention_kl = layer.kl / static_cast<double>(layer.count);
  d.top1 = layer.top1 / static_cast<double>(layer.count);
  d.logit_error = ratio(layer.logit_error, layer.logit_power);
  d.output_error = ratio(layer.output_error, layer.output_power);
  d.output_error_k = ratio(layer.output_error_k, layer.output_power);
  d.output_error_v = ratio(layer.output_error_v, layer.output_power);
  d.mse_k = result.k.mse();
  d.mse_v = result.v.mse();
  d.snr_k = result.k.snr();
  d.snr_v = result.v.snr();
  d.range_k = result.k.range_mean();
  d.range_v = result.v.range_mean();
  return result;
}

// sum += part / n, every number, bucket and head.
void add_share(LayerDiagnostics& sum, const LayerDiagnostics& part, size_t n) {
  const auto share = 1.0 / static_cast<double>(n);
  for (const auto& info : diagnostic_table()) sum.*info.field += share * (part.*info.field);
  sum.bucket_kl.resize(part.bucket_kl.size());
  sum.bucket_output_error.resize(part.bucket_kl.size());
  for (size_t b = 0; b < part.bucket_kl.size(); ++b) {
    sum.bucket_kl[b] += share * part.bucket_kl[b];
    sum.bucket_output_error[b] += share * part.bucket_output_error[b];
  }
  sum.head_kl.resize(part.head_kl.size());
  sum.head_output_error.resize(part.head_output_error.size());
  for (size_t h = 0; h < part.head_kl.size(); ++h) {
    sum.head_kl[h] += share * part.head_kl[h];
    sum.head_output_error[h] += share * part.head_output_error[h];
  }
}

SideReport blank(const SideCodes& codes) {
  const CodecOptions& first = codes.layers.begin()->second.front().options;
  return {
      .codec = codec_names(codes), .objective = codes.objective, .groups = first.groups, .clip = first.clip};
}

double mean_alignment(const LayerShape& shape, const Probe& probe) {
  double sum = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    sum += alignment(shape, probe, head, fmt::format("layer {}, KV head {}", shape.layer, head));
  }
  return sum / shape.kv_heads;
}

void add_distinct(std::vector<std::string>& list, std::string_view name) {
  if (std::ranges::find(list, name) == list.end()) list.emplace_back(name);
}

std::vector<std::string> storage_of(const CacheCodes& row) {
  std::vector<std::string> storages;
  for (const auto* side : {&row.k, &row.v}) {
    for (const auto& [id, heads] : side->layers) {
      for (const auto& head : heads) add_distinct(storages, head.codec->storage);
    }
  }
  return storages;
}

void check_rows(const std::vector<CacheCodes>& rows, const std::vector<LayerShape>& shapes) {
  if (rows.empty()) throw invalid("verify: no rows: expected at least one set-up to measure");
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t other = 0; other < r; ++other) {
      if (rows[r].name != rows[other].name) continue;
      throw invalid("two rows are called '{}': give them names of their own, NAME=…", rows[r].name);
    }
    check_codes(rows[r].k, Side::K, shapes, rows[r].name);
    check_codes(rows[r].v, Side::V, shapes, rows[r].name);
  }
}

}  // namespace

std::vector<PositionBucket> position_buckets(int64_t first_query, int64_t tokens) {
  std::vector<PositionBucket> buckets;
  int64_t edge = 1;
  while (edge <= first_query) edge *= 2;
  for (int64_t first = first_query; first < tokens; first = edge, edge *= 2)
    buckets.push_back({first, std::min(edge, tokens)});
  return buckets;
}

std::string path_of(const std::vector<RowReport>& rows, const ComputeDevice& device) {
  std::vector<std::string> storages;
  for (const auto& row : rows) {
    for (const auto& storage : row.storage) add_distinct(storages, storage);
  }
  return fmt::format("{}, {}", fmt::join(storages, " and "),
                     device.cuda < 0 ? fmt::format("CPU {}", cpu_level()) : device.name);
}

VerifyReport report_frame(const StatisticsReader& statistics, const VerifyOptions& options) {
  const auto& header = statistics.header();
  select_layers(header, options.layers);
  check_probes(header, options.probes, options.windows, options.first_query);
  VerifyReport report;
  report.provenance = header.provenance;
  report.windows = options.windows;
  report.first_query = options.first_query;
  report.probes = options.probes;
  for (const int probe : options.probes)
    report.probe_tokens.push_back(header.probe_lengths[static_cast<size_t>(probe)]);
  report.buckets = position_buckets(options.first_query, std::ranges::max(report.probe_tokens));
  return report;
}

VerifyReport verify(const StatisticsReader& statistics, const std::vector<CacheCodes>& rows,
                    const VerifyOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  const auto shapes = select_layers(statistics.header(), options.layers);
  VerifyReport report = report_frame(statistics, options);
  check_rows(rows, shapes);
  for (const auto& row : rows) {
    report.rows.push_back(
        {.name = row.name, .storage = storage_of(row), .k = blank(row.k), .v = blank(row.v)});
  }
  report.path = path_of(report.rows, options.device);
  std::vector<CodeError> k_total(rows.size()), v_total(rows.size());

  const auto total = static_cast<int64_t>(shapes.size() * options.probes.size() * rows.size());
  int64_t done = 0;
  for (const auto& shape : shapes) {
    for (auto& row : report.rows) row.layers.push_back({.layer = shape.layer});
    std::vector<std::vector<AttentionLoss>> pooled(rows.size(),
                                                   std::vector<AttentionLoss>(report.buckets.size()));
    for (const int index : options.probes) {
      const Probe probe = load_probe(statistics, shape, index);
      const double aligned = mean_alignment(shape, probe);
      for (size_t r = 0; r < rows.size(); ++r) {
        auto measured = measure(rows[r], shape, probe, options, report.buckets);
        measured.diagnostics.alignment = aligned;
        add_share(report.rows[r].layers.back(), measured.diagnostics, options.probes.size());
        for (size_t b = 0; b < pooled[r].size(); ++b) pooled[r][b].add(measured.buckets[b]);
        k_total[r].add(measured.k);
        v_total[r].add(measured.v);
        if (progress) progress(++done, total);
      }
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      auto& layer = report.rows[r].layers.back();
      for (const auto& loss : pooled[r]) {
        layer.bucket_kl.push_back(loss.kl / static_cast<double>(loss.count));
        layer.bucket_output_error.push_back(ratio(loss.output_error, loss.output_power));
      }
    }
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    auto& row = report.rows[r];
    row.k.bits = k_total[r].bits();
    row.v.bits = v_total[r].bits();
    for (const auto& layer : row.layers) add_share(row.mean, layer, row.layers.size());
    row.mean.layer = -1;
    row.mean.head_kl.clear();
    row.mean.head_output_error.clear();
  }
  return report;
}

}  // namespace oscar
