// The figures of a verification as CSV.
#include <cmath>

#include "formats/error.h"
#include "libcalib/ranking.h"
#include "libcalib/report_html.h"

namespace oscar {
namespace {

std::string field_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"') result += '"';
    result += c;
  }
  return result + '"';
}
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "";
}

// The fields of one line by column; what a line does not have stays empty.
using Line = std::vector<std::string>;

void add_end_to_end(Line& line, const std::optional<EndToEndResult>& result) {
  const auto figures = result ? result->mean : EndToEndFigures{std::nan(""), std::nan(""), std::nan("")};
  for (const double value : {figures.perplexity, figures.token_kl, figures.top1})
    line.push_back(number(value));
}

Line values(const LayerDiagnostics& diagnostics, size_t buckets) {
  Line line;
  for (const auto& info : diagnostic_table()) line.push_back(number(diagnostics.*info.field));
  for (const auto* of : {&diagnostics.bucket_kl, &diagnostics.bucket_output_error}) {
    for (size_t b = 0; b < buckets; ++b) line.push_back(b < of->size() ? number((*of)[b]) : "");
  }
  return line;
}

std::string joined(const Line& line) {
  std::string text;
  for (const auto& field : line) text += field_text(field) + ',';
  if (!text.empty()) text.pop_back();
  return text + "\r\n";
}

}  // namespace

std::string to_csv(const VerifyReport& report) {
  Line head{"row", "layer"};
  for (const char* side : {"k", "v"}) {
    for (const char* name : {"codec", "objective", "groups", "clip", "bits"})
      head.push_back(fmt::format("{}_{}", name, side));
  }
  for (const auto& info : diagnostic_table()) head.emplace_back(info.name);
  for (const char* name : {"attention_kl", "output_error"}) {
    for (const auto& bucket : report.buckets)
      head.push_back(fmt::format("{}_{}_{}", name, bucket.first, bucket.last));
  }
  for (const char* name : {"e2e_perplexity", "e2e_token_kl", "e2e_top1"}) head.emplace_back(name);
  std::string text = joined(head);

  if (report.exact) {
    Line line{exact_name(report), "mean"};
    line.resize(head.size() - 3);
    add_end_to_end(line, report.exact);
    text += joined(line);
  }
  for (const auto& row : report.rows) {
    Line side;
    for (const auto* body : {&row.k, &row.v}) {
      side.insert(side.end(), {body->codec, body->objective, std::to_string(body->groups), number(body->clip),
                               number(body->bits)});
    }
    const auto add = [&](const std::string& layer, const LayerDiagnostics& diagnostics,
                         const std::optional<EndToEndResult>& end_to_end) {
      Line line{row.name, layer};
      line.insert(line.end(), side.begin(), side.end());
      const auto measured = values(diagnostics, report.buckets.size());
      line.insert(line.end(), measured.begin(), measured.end());
      add_end_to_end(line, end_to_end);
      text += joined(line);
    };
    for (const auto& layer : row.layers) add(std::to_string(layer.layer), layer, std::nullopt);
    add("mean", row.mean, row.end_to_end);
  }
  return text;
}

}  // namespace oscar
