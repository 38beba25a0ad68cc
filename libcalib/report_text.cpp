// Reports as tables for a terminal.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/ranking.h"
#include "libcalib/report.h"

namespace oscar {
namespace {

// First column to the left, numbers to the right, two spaces between.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { row(std::move(head)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const {
    std::vector<size_t> width(rows_.front().size());
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      std::string line = fmt::format("{:<{}}", row[0], width[0]);
      for (size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], width[i]);
      text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string loss(double value) {
  return value != 0 && std::abs(value) < 1e-3 ? fmt::format("{:.2e}", value) : fmt::format("{:.4f}", value);
}
std::string decibel(double value) {
  return fmt::format("{:.1f}", value);
}
std::string ratio(double value) {
  return value <= 0 ? "off" : fmt::format("{}", value);
}

template <typename T>
std::string list(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string setup_line(const RowReport& row) {
  return fmt::format("{} / {}, clip {} / {}", row.k.objective, row.v.objective, ratio(row.k.clip),
                     ratio(row.v.clip));
}

// "-" where a row was not measured end to end, or has no such figure.
std::vector<std::string> end_to_end_cells(const std::optional<EndToEndResult>& result) {
  if (!result) return {"-", "-", "-"};
  const auto cell = [](double value, const std::string& text) { return std::isfinite(value) ? text : "-"; };
  const auto& mean = result->mean;
  return {cell(mean.perplexity, fmt::format("{:.2f}", mean.perplexity)),
          cell(mean.token_kl, loss(mean.token_kl)), cell(mean.top1, fmt::format("{:.3f}", mean.top1))};
}

// Bits belong to the layers that were measured; an end-to-end run has all of them. "" for every layer.
std::string measured_layers(const VerifyReport& report) {
  std::vector<int> ids;
  if (!report.rows.empty()) {
    for (const LayerDiagnostics& layer : report.rows[0].layers) ids.push_back(layer.layer);
  }
  if (ids.empty() || std::ssize(ids) >= report.provenance.layers_total) return "";
  return fmt::format(" {} (bits too){}", list(ids),
                     has_end_to_end(report) ? "; end to end with every layer" : "");
}

}  // namespace

std::string to_text(const VerifyReport& report, bool per_layer) {
  std::string text = fmt::format(
      "{}: attention over a cache of {}\nwindows: first {} and last {} tokens exact; positions {}: of probes "
      "{} ({} tokens); "
      "means over heads, positions, probes and layers{}\n\n",
      report.provenance.model_name, report.path, report.windows.sink, report.windows.recent,
      report.first_query, list(report.probes), list(report.probe_tokens), measured_layers(report));
  const bool end_to_end = has_end_to_end(report);
  std::vector<std::string> head{"row",   "bits K", "bits V", "attn KL", "out err", "logit err",
                                "top-1", "K only", "V only", "SNR K",   "SNR V"};
  if (end_to_end) head.insert(head.begin() + 3, {"ppl", "token KL", "e2e top-1"});
  head.emplace_back("set-up K / V");
  Table table(head);
  const auto add = [&](std::vector<std::string> cells, const std::optional<EndToEndResult>& result) {
    if (const auto more = end_to_end_cells(result); end_to_end)
      cells.insert(cells.begin() + 3, more.begin(), more.end());
    table.row(std::move(cells));
  };
  if (report.exact)
    add({exact_name(report), "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "no quantised cache"},
        report.exact);
  const auto rows = by_loss(report);
  for (const auto* row : rows) {
    const auto& m = row->mean;
    add({row->name, fmt::format("{:.2f}", row->k.bits), fmt::format("{:.2f}", row->v.bits),
         loss(m.attention_kl), loss(m.output_error), loss(m.logit_error), fmt::format("{:.3f}", m.top1),
         loss(m.output_error_k), loss(m.output_error_v), decibel(m.snr_k), decibel(m.snr_v),
         setup_line(*row)},
        row->end_to_end);
  }
  text += table.text();
  if (!per_layer) return text;
  for (const auto* row : rows) {
    text += fmt::format("\n{}: {}\n", row->name, setup_line(*row));
    Table layers({"layer", "attn KL", "out err", "logit err", "top-1", "K only", "V only", "SNR K", "SNR V",
                  "flat K", "flat V", "range K", "range V", "align", "worst head KL"});
    for (const auto& d : row->layers) {
      const auto worst = std::max_element(d.head_kl.begin(), d.head_kl.end());
      layers.row({fmt::format("{}", d.layer), loss(d.attention_kl), loss(d.output_error), loss(d.logit_error),
                  fmt::format("{:.3f}", d.top1), loss(d.output_error_k), loss(d.output_error_v),
                  decibel(d.snr_k), decibel(d.snr_v), fmt::format("{:.2f}", d.flatness_k),
                  fmt::format("{:.2f}", d.flatness_v), fmt::format("{:.3g}", d.range_k),
                  fmt::format("{:.3g}", d.range_v), fmt::format("{:.2f}", d.alignment),
                  fmt::format("{} (head {})", loss(*worst), worst - d.head_kl.begin())});
    }
    text += layers.text();
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> serving_environment(const ClipReport& report) {
  const auto clip = [](double value) { return fmt::format("{}", value); };
  return {{"SGLANG_ENABLE_MIXED_KV_WINDOWS", "1"},
          {"SGLANG_MIXED_KV_PREFIX_TOKENS", fmt::format("{}", report.options.windows.sink)},
          {"SGLANG_MIXED_KV_RECENT_TOKENS", fmt::format("{}", report.options.windows.recent)},
          {"SGLANG_MIXED_KV_SCALE_DTYPE", "float32"},
          {"SGLANG_OSCAR_K_CLIP_RATIO", clip(report.model_k.best_ratio)},
          {"SGLANG_OSCAR_V_CLIP_RATIO", clip(report.model_v.best_ratio)}};
}

std::vector<std::string> serving_flags(const ClipReport& report) {
  return {"--kv-cache-dtype", "int2", "--kv-cache-quant-group-size", fmt::format("{}", report.group_size_k)};
}

static std::string choice_line(const char* side, const char* what, const ClipCurve& model,
                               const std::map<int, ClipCurve>& layers) {
  double low = 1, high = 0, own = 0;
  for (const auto& [layer, curve] : layers) {
    const double effective = curve.best_ratio <= 0 ? 1 : curve.best_ratio;  // off is the weakest clip
    low = std::min(low, effective);
    high = std::max(high, effective);
    own += curve.best_loss / static_cast<double>(layers.size());
  }
  const double more = model.best_loss > 0 ? 100 * (model.hand_loss / model.best_loss - 1) : 0;
  return fmt::format("{}: {} ({} {}); {} would lose {} (+{:.1f} %); each layer's own, {} to {}, {}\n", side,
                     ratio(model.best_ratio), what, loss(model.best_loss), ratio(model.hand_ratio),
                     loss(model.hand_loss), more, ratio(low), ratio(high), loss(own));
}

std::string to_text(const ClipReport& report) {
  std::string text = fmt::format(
      "{}: clip ratios for {} / {}, codec {}, {} group(s)\nwindows: first {} and last {} tokens exact; {} "
      "positions from {} "
      "of probes {}, seed {}; means over {} layers\n\n",
      report.provenance.model_name, report.objective_k, report.objective_v, report.codec, report.groups,
      report.options.windows.sink, report.options.windows.recent, report.options.queries,
      report.options.first_query, list(report.options.probes), report.options.seed, report.k.size());
  std::vector<double> ratios = report.model_k.ratio;
  ratios.insert(ratios.end(), report.model_v.ratio.begin(), report.model_v.ratio.end());
  std::sort(ratios.begin(), ratios.end());
  ratios.erase(std::unique(ratios.begin(), ratios.end()), ratios.end());
  Table table({"ratio", "K: attn KL", "", "V: out err", ""});
  const auto cell = [](const ClipCurve& curve, double at) {
    const auto found = std::ranges::find(curve.ratio, at);
    return found == curve.ratio.end() ? std::string("-")
                                      : loss(curve.loss[static_cast<size_t>(found - curve.ratio.begin())]);
  };
  for (const double at : ratios) {
    table.row({ratio(at), cell(report.model_k, at), at == report.model_k.best_ratio ? "best" : "",
               cell(report.model_v, at), at == report.model_v.best_ratio ? "best" : ""});
  }
  text += table.text() + '\n';
  text += choice_line("K", "attn KL", report.model_k, report.k);
  text += choice_line("V", "out err", report.model_v, report.v);
  for (const auto& note : report.notes) text += "note: " + note + '\n';
  text += "\nServe with:\n";
  for (const auto& [name, value] : serving_environment(report))
    text += fmt::format("  {}={} \\\n", name, value);
  text += fmt::format("  … {}\n", fmt::join(serving_flags(report), " "));
  return text;
}

std::string to_text(const Comparison& comparison) {
  std::string text;
  for (const auto& remark : comparison.remarks) text += remark + '\n';
  if (!comparison.only_a.empty())
    text += fmt::format("layers only in the first: {}\n", list(comparison.only_a));
  if (!comparison.only_b.empty())
    text += fmt::format("layers only in the second: {}\n", list(comparison.only_b));
  Table table({"layer", "covariance", "subspace", "rotation"});
  for (const auto& layer : comparison.layers) {
    table.row({fmt::format("{}", layer.layer), fmt::format("{:.2e}", layer.covariance),
               fmt::format("{:.2e}", layer.subspace), fmt::format("{:.2e}", layer.rotation)});
  }
  return text + table.text();
}

}  // namespace oscar
