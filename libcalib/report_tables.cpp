#include "libcalib/report_tables.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/artifacts/provenance_fields.h"
#include "libcalib/charts.h"
#include "libcalib/ranking.h"
#include "libcalib/report_figures.h"

namespace oscar::tables {
namespace {

using charts::escape;
using figures::fixed;

std::string ratio(double value) {
  return value <= 0 ? "off" : fmt::format("{}", value);
}

// A figure of the rows' table. `least`: smaller is better, so the smallest is set in bold.
struct Column {
  const char *group, *head;
  double (*value)(const RowReport&, bool token_kl);
  std::string (*text)(double);
  bool least, end_to_end;
};
double from_end(const RowReport& row, double EndToEndFigures::*field) {
  return row.end_to_end ? row.end_to_end->mean.*field : std::nan("");
}
std::string two(double value) {
  return fixed(value, 2);
}
std::string three(double value) {
  return fixed(value, 3);
}
constexpr Column kColumns[] = {
    {"bits", "K", [](const RowReport& row, bool) { return row.k.bits; }, two, false, false},
    {"bits", "V", [](const RowReport& row, bool) { return row.v.bits; }, two, false, false},
    {"bits", "mean", [](const RowReport& row, bool) { return mean_bits(row); }, two, false, false},
    {"loss", "per bit", loss_per_bit, figures::loss, true, false},
    {"attention", "attn KL", [](const RowReport& row, bool) { return row.mean.attention_kl; }, figures::loss,
     true, false},
    {"attention", "out err", [](const RowReport& row, bool) { return row.mean.output_error; }, figures::loss,
     true, false},
    {"attention", "top-1", [](const RowReport& row, bool) { return row.mean.top1; }, three, false, false},
    {"end to end", "token KL",
     [](const RowReport& row, bool) { return from_end(row, &EndToEndFigures::token_kl); }, figures::loss,
     true, true},
    {"end to end", "perplexity",
     [](const RowReport& row, bool) { return from_end(row, &EndToEndFigures::perplexity); }, two, true, true},
    {"end to end", "top-1", [](const RowReport& row, bool) { return from_end(row, &EndToEndFigures::top1); },
     three, false, true},
};

std::vector<Column> columns(const VerifyReport& report) {
  std::vector<Column> result;
  for (const auto& column : kColumns) {
    if (!column.end_to_end || has_end_to_end(report)) result.push_back(column);
  }
  return result;
}

std::string head(const std::vector<Column>& columns) {
  std::string groups =
                  "<th rowspan=\"2\" scope=\"col\">row</th><th rowspan=\"2\" scope=\"col\">codes K / V</th>",
              heads;
  for (size_t i = 0; i < columns.size();) {
    size_t end = i;
    while (end < columns.size() && std::string_view(columns[end].group) == columns[i].group) ++end;
    groups += fmt::format("<th class=\"number group\" colspan=\"{}\" scope=\"colgroup\">{}</th>", end - i,
                          columns[i].group);
    for (; i < end; ++i) heads += fmt::format("<th class=\"number\" scope=\"col\">{}</th>", columns[i].head);
  }
  return "<thead><tr>" + groups + "</tr>\n<tr>" + heads + "</tr></thead>\n";
}

std::string either(const std::string& k, const std::string& v) {
  return escape(k == v ? k : k + " / " + v);
}

std::string name_cell(const RowReport& row) {
  std::string text = fmt::format("<th scope=\"row\">{}<small>{}", escape(row.name),
                                 either(row.k.objective, row.v.objective));
  if (row.k.clip > 0 || row.v.clip > 0)
    text += fmt::format(", clip {} / {}", ratio(row.k.clip), ratio(row.v.clip));
  if (row.windows) text += fmt::format(", exact windows {} and {}", row.windows->sink, row.windows->recent);
  return text + "</small></th>";
}

// The model without a quantised cache, as a row: it loses nothing by definition.
RowReport exact_row(const VerifyReport& report) {
  RowReport row{.name = exact_name(report), .end_to_end = report.exact};
  row.k.codec = row.v.codec = "exact";
  row.k.bits = row.v.bits = report.provenance.dtype == "float32" ? 32 : 16;
  row.mean.top1 = 1;
  return row;
}

std::string fact(std::string_view name, const std::string& html) {
  return fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), html);
}
std::string facts(const std::string& body) {
  return "<table class=\"facts\"><tbody>\n" + body + "</tbody></table>\n";
}

// "16 × 4096, 1 × 100"
std::string lengths(const std::vector<int64_t>& values) {
  std::string text;
  for (size_t i = 0; i < values.size();) {
    size_t end = i;
    while (end < values.size() && values[end] == values[i]) ++end;
    text += fmt::format("{}{} × {}", text.empty() ? "" : ", ", end - i, values[i]);
    i = end;
  }
  return text;
}

}  // namespace

std::string rows(const VerifyReport& report) {
  const auto shown = columns(report);
  const bool token_kl = ranks_by_token_kl(report);
  std::string body;
  if (report.exact) {
    const auto row = exact_row(report);
    body += fmt::format("<tr class=\"exact\"><th scope=\"row\">{}</th><td>exact</td>", escape(row.name));
    for (const auto& column : shown)
      body += fmt::format("<td class=\"number\">{}</td>",
                          column.value == loss_per_bit ? "–" : column.text(column.value(row, token_kl)));
    body += "</tr>\n";
  }
  std::vector<double> least(shown.size(), INFINITY);
  for (const auto& row : report.rows) {
    if (mean_bits(row) >= kExactBits) continue;
    for (size_t i = 0; i < shown.size(); ++i) {
      const double value = shown[i].value(row, token_kl);
      if (value < least[i]) least[i] = value;
    }
  }
  for (const auto* row : by_loss_per_bit(report)) {
    body += "<tr>" + name_cell(*row) + "<td>" + either(row->k.codec, row->v.codec) + "</td>";
    for (size_t i = 0; i < shown.size(); ++i) {
      const double value = shown[i].value(*row, token_kl);
      const bool bold = shown[i].least && value == least[i] && report.rows.size() > 1;
      body += fmt::format("<td class=\"number{}\">{}</td>", bold ? " least" : "", shown[i].text(value));
    }
    body += "</tr>\n";
  }
  return "<table class=\"rows\">" + head(shown) + "<tbody>\n" + body + "</tbody></table>\n";
}

std::string rows_caption(const VerifyReport& report) {
  const bool token_kl = ranks_by_token_kl(report);
  std::string text = fmt::format(
      "Every row, by loss per bit: {} · 4<sup>b − 2</sup> with b the mean of the bits of K and V, which is "
      "what the loss would "
      "be at 2 bits if a further bit divided it by four, the rate of squared errors (6 dB a bit). Bits are "
      "measured: all that "
      "is held of the history, metadata included. Attention: exact inputs to every layer; attn KL is the "
      "mean of KL(p ‖ p̂) of "
      "the attention probabilities in nats, out err Σ‖o − ô‖² / Σ‖o‖² of the outputs, top-1 the share of "
      "queries with the same "
      "most attended token.",
      token_kl ? "token KL" : "attn KL");
  if (has_end_to_end(report))
    text +=
        " End to end: the whole model run with the quantised cache; token KL and top-1 compare next-token "
        "distributions with "
        "those of the exact cache.";
  return text + " Bold: the least of a column.";
}

std::string provenance(const Provenance& provenance) {
  std::string body;
  for (const auto& field : kProvenanceTexts) {
    const auto& value = provenance.*field.value;
    std::string name = field.name;
    std::ranges::replace(name, '_', ' ');
    body += fact(name, value.empty() ? "–" : "<code>" + escape(value) + "</code>");
  }
  body += fact("decoder layers", std::to_string(provenance.layers_total));
  body += fact("calibration tokens", std::to_string(provenance.tokens));
  if (!provenance.sequence_lengths.empty())
    body += fact("calibration sequences", lengths(provenance.sequence_lengths));
  return facts(body);
}

std::string measurement(const VerifyReport& report) {
  std::string body = fact("code that ran", escape(report.path));
  body += fact("windows",
               fmt::format("first {} and last {} tokens exact", report.windows.sink, report.windows.recent));
  body += fact("counted positions", fmt::format("from {}", report.first_query));
  std::string probes;
  for (size_t i = 0; i < report.probes.size(); ++i) {
    probes += fmt::format("{}{}", i == 0 ? "" : ", ", report.probes[i]);
    if (i < report.probe_tokens.size()) probes += fmt::format(" ({} tokens)", report.probe_tokens[i]);
  }
  body += fact("probes, held out", probes.empty() ? "–" : probes);
  std::string buckets;
  for (const auto& bucket : report.buckets)
    buckets += fmt::format("{}{}–{}", buckets.empty() ? "" : ", ", bucket.first, bucket.last - 1);
  if (!buckets.empty()) body += fact("position ranges", buckets);
  if (!report.rows.empty()) body += fact("layers", std::to_string(report.rows[0].layers.size()));
  body += fact("means", "over heads and positions of a probe and layer, then over probes, then over layers");
  return facts(body);
}

std::string methods(const std::vector<MethodNote>& notes) {
  std::string body;
  for (const auto& note : notes) {
    body += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        escape(note.name), escape(note.source), escape(note.stores), escape(note.needs));
  }
  return "<table><thead><tr><th scope=\"col\">method</th><th scope=\"col\">source</th><th "
         "scope=\"col\">stores</th><th "
         "scope=\"col\">needs</th></tr></thead><tbody>\n" +
         body + "</tbody></table>\n";
}

}  // namespace oscar::tables
