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

// Far above the rounding of float32 products (1e-6), far below what any wrong matrix gives.
constexpr double kTransformTolerance = 1e-3;

double ratio(double error, double power) {
  return error == 0 ? 0 : error / power;
}

void check_transform(const std::string& place, const TransformError& error) {
  const auto refuse = [&](const char* identity, const char* side, double found) {
    return failure(
        "{}: {} fails by {:.3g} (relative, limit {}): the {} rotation is not orthogonal, or not for this "
        "model",
        place, identity, found, kTransformTolerance, side);
  };
  if (!(error.logits <= kTransformTolerance)) throw refuse("(qR)(kR)^T = qk^T", "K", error.logits);
  if (!(error.values <= kTransformTolerance)) throw refuse("vRR^T = v", "V", error.values);
}

struct Measured {
  LayerDiagnostics diagnostics;
  CodeError k, v;
};

// One row on one probe of one layer.
Measured measure(const VerifyRow& row, const LayerShape& shape, const Probe& probe,
                 const VerifyOptions& options) {
  Measured result;
  auto& d = result.diagnostics;
  const CodecOptions k_options = layer_options(row.k, shape.layer),
                     v_options = layer_options(row.v, shape.layer);
  AttentionLoss layer;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const Transform k = head_transform(row.k, shape.layer, head),
                    v = head_transform(row.v, shape.layer, head);
    const HeadRows rows = head_rows(shape, probe, head, k, v);
    check_transform(fmt::format("row '{}', layer {}, KV head {}", row.name, shape.layer, head),
                    transform_error(shape, probe, head, v, rows));
    const HistoryCodes k_codes(*row.k.codec, k_options, rows.k.data(), rows.tokens, shape.dim_k,
                               options.windows);
    const HistoryCodes v_codes(*row.v.codec, v_options, rows.v.data(), rows.tokens, shape.dim_v,
                               options.windows);
    result.k.add(code_error(k_codes, rows.k.data(), shape.dim_k, k_options.groups));
    result.v.add(code_error(v_codes, rows.v.data(), shape.dim_v, v_options.groups));

    const AttentionLoss loss =
        attention_loss(shape, rows, options.windows, options.first_query, rows.tokens, k_codes, v_codes);
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

// sum += part / n, every number and every head.
void add_share(LayerDiagnostics& sum, const LayerDiagnostics& part, size_t n) {
  const auto share = 1.0 / static_cast<double>(n);
  for (const auto& info : diagnostic_table()) sum.*info.field += share * (part.*info.field);
  sum.head_kl.resize(part.head_kl.size());
  sum.head_output_error.resize(part.head_output_error.size());
  for (size_t h = 0; h < part.head_kl.size(); ++h) {
    sum.head_kl[h] += share * part.head_kl[h];
    sum.head_output_error[h] += share * part.head_output_error[h];
  }
}

RowReport blank(const VerifyRow& row) {
  return {.name = row.name,
          .codec_k = std::string(row.k.codec->name),
          .codec_v = std::string(row.v.codec->name),
          .objective_k = objective(row.k),
          .objective_v = objective(row.v),
          .groups_k = row.k.options.groups,
          .groups_v = row.v.options.groups,
          .clip_k = row.k.options.clip,
          .clip_v = row.v.options.clip};
}

double mean_alignment(const LayerShape& shape, const Probe& probe) {
  double sum = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    sum += alignment(shape, probe, head, fmt::format("layer {}, KV head {}", shape.layer, head));
  }
  return sum / shape.kv_heads;
}

std::string path_of(const std::vector<VerifyRow>& rows) {
  std::vector<std::string_view> storages;
  for (const auto& row : rows) {
    for (const auto* codec : {row.k.codec, row.v.codec}) {
      if (std::ranges::find(storages, codec->storage) == storages.end()) storages.push_back(codec->storage);
    }
  }
  return fmt::format("{}, CPU {}", fmt::join(storages, " + "), cpu_level());
}

}  // namespace

VerifyReport verify(const StatisticsReader& statistics, const std::vector<VerifyRow>& rows,
                    const VerifyOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  const auto& header = statistics.header();
  if (rows.empty()) throw invalid("verify: no rows: expected at least one set-up to measure");
  const auto shapes = select_layers(header, options.layers);
  check_probes(header, options.probes, options.windows, options.first_query);
  for (const auto& row : rows) {
    check_setup(row.k, Side::K, shapes, options.windows, row.name);
    check_setup(row.v, Side::V, shapes, options.windows, row.name);
  }

  VerifyReport report{.provenance = header.provenance,
                      .windows = options.windows,
                      .first_query = options.first_query,
                      .probes = options.probes,
                      .path = path_of(rows)};
  for (const int probe : options.probes)
    report.probe_tokens.push_back(header.probe_lengths[static_cast<size_t>(probe)]);
  for (const auto& row : rows) report.rows.push_back(blank(row));
  std::vector<CodeError> k_total(rows.size()), v_total(rows.size());

  const auto total = static_cast<int64_t>(shapes.size() * options.probes.size() * rows.size());
  int64_t done = 0;
  for (const auto& shape : shapes) {
    for (auto& row : report.rows) row.layers.push_back({.layer = shape.layer});
    for (const int index : options.probes) {
      const Probe probe = load_probe(statistics, shape, index);
      const double aligned = mean_alignment(shape, probe);
      for (size_t r = 0; r < rows.size(); ++r) {
        auto measured = measure(rows[r], shape, probe, options);
        measured.diagnostics.alignment = aligned;
        add_share(report.rows[r].layers.back(), measured.diagnostics, options.probes.size());
        k_total[r].add(measured.k);
        v_total[r].add(measured.v);
        if (progress) progress(++done, total);
      }
    }
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    auto& row = report.rows[r];
    row.bits_k = k_total[r].bits();
    row.bits_v = v_total[r].bits();
    for (const auto& layer : row.layers) add_share(row.mean, layer, row.layers.size());
    row.mean.layer = -1;
    row.mean.head_kl.clear();
    row.mean.head_output_error.clear();
  }
  return report;
}

}  // namespace oscar
