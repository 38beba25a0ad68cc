// The page from top to bottom; its figures are those of report_figures.cpp.
#include "libcalib/report_html.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/charts.h"
#include "libcalib/ranking.h"
#include "libcalib/report_figures.h"
#include "libcalib/report_style.h"
#include "libcalib/report_tables.h"

namespace oscar {
namespace {

using charts::escape;

class Page {
 public:
  void add(const std::string& html) { html_ += html; }
  void heading(const char* text) { html_ += fmt::format("<h2>{}</h2>\n", text); }
  // Numbered from 1; `layout` is "wide" (scrolls on a narrow screen), "pair" or "".
  void figure(const char* layout, const std::string& body, const std::string& caption) {
    if (body.empty()) return;
    html_ += fmt::format(
        "<figure><div class=\"{}\">\n{}</div><figcaption><b>Figure {}.</b> {}</figcaption></figure>\n",
        layout, body, ++figures_, caption);
  }
  void table(const std::string& body, const std::string& caption) {
    if (body.empty()) return;
    const auto opened = body.substr(0, body.find('>') + 1), rest = body.substr(opened.size());
    html_ +=
        fmt::format("<div class=\"table\">{}<caption><span><b>Table {}.</b> {}</span></caption>\n{}</div>\n",
                    opened, ++tables_, caption, rest);
  }
  std::string text() && { return std::move(html_); }

 private:
  std::string html_;
  int figures_ = 0, tables_ = 0;
};

// "figures 186 times smaller" reads badly below two.
std::string times(double ratio) {
  if (!std::isfinite(ratio) || ratio <= 0) return "";
  if (ratio >= 0.995 && ratio < 1.005) return "the same as";
  if (ratio < 1) return fmt::format("{:.1f} % more than", 100 * (1 / ratio - 1));
  if (ratio < 2) return fmt::format("{:.1f} % less than", 100 * (1 - 1 / ratio));
  return fmt::format("{:.{}f} times less than", ratio, ratio < 10 ? 1 : 0);
}

std::string summary(const VerifyReport& report) {
  const bool token_kl = ranks_by_token_kl(report);
  const auto rows = by_loss_per_bit(report);
  if (rows.empty() || std::isnan(row_loss(*rows[0], token_kl))) return "Nothing was measured.";
  const RowReport& best = *rows[0];
  const double loss = row_loss(best, token_kl);
  std::string text = fmt::format(
      "Of {} ways to keep the cache, <strong>{}</strong> loses least per bit: at {} bits an element (keys "
      "{}, values {}), "
      "the {} is {} nats",
      rows.size(), escape(best.name), figures::fixed(mean_bits(best), 2), figures::fixed(best.k.bits, 2),
      figures::fixed(best.v.bits, 2), token_kl ? "KL of the next token" : "KL of attention",
      figures::loss(loss));
  if (token_kl) {
    const auto& mean = best.end_to_end->mean;
    if (std::isfinite(mean.perplexity))
      text += fmt::format(" and the perplexity {}", figures::fixed(mean.perplexity, 2));
    if (std::isfinite(mean.perplexity) && report.exact && std::isfinite(report.exact->mean.perplexity)) {
      const double exact = report.exact->mean.perplexity;
      text += fmt::format(" where the exact cache has {} ({:+.1f} %)", figures::fixed(exact, 2),
                          100 * (mean.perplexity / exact - 1));
    }
    text += fmt::format("; the most likely token is the same at {} % of positions",
                        figures::fixed(100 * mean.top1, 1));
  }
  text += ". ";
  std::vector<std::string> against;
  for (const char* name : {"naive", "hadamard+clip"}) {
    const auto found = std::ranges::find(report.rows, name, &RowReport::name);
    if (found == report.rows.end() || &*found == &best) continue;
    const double other = row_loss(*found, token_kl);
    const auto factor = times(other / loss);
    if (!factor.empty())
      against.push_back(fmt::format("{} <em>{}</em> ({} at {} bits)", factor, name, figures::loss(other),
                                    figures::fixed(mean_bits(*found), 2)));
  }
  if (!against.empty()) text += fmt::format("That is {}.", fmt::join(against, " and "));
  return text;
}

void add_bits(Page& page, const VerifyReport& report, const figures::Looks& looks) {
  const bool token_kl = ranks_by_token_kl(report);
  std::vector<std::string> absent;
  for (const auto& row : report.rows) {
    if (mean_bits(row) >= kExactBits || !charts::shown(row_loss(row, token_kl), true))
      absent.push_back(escape(row.name));
  }
  std::string caption =
      "Loss against bits; down and to the left is better. The stepped line joins the rows that no other "
      "beats in both; the "
      "dotted one is as good per bit as the best row.";
  if (!absent.empty())
    caption += fmt::format(" Not shown, for want of a loss or of savings: {}.", fmt::join(absent, ", "));
  page.heading("Loss against bits");
  page.figure("wide", figures::loss_versus_bits(report, looks), caption);
}

void add_layers(Page& page, const VerifyReport& report, const figures::Looks& looks) {
  struct Kind {
    const char *id, *label, *meaning;
    double LayerDiagnostics::*field;
  };
  static constexpr Kind kinds[] = {
      {"kl", "attention KL (nats)", "KL of attention, mean over heads and counted positions",
       &LayerDiagnostics::attention_kl},
      {"error", "output error", "Relative squared error of the attention output",
       &LayerDiagnostics::output_error}};
  page.heading("By layer");
  for (const auto& kind : kinds) {
    const auto others = std::ranges::count_if(looks, [](const auto& look) { return !look.second.featured; });
    page.figure(
        "wide", figures::layers(report, looks, kind.id, kind.field, kind.label),
        fmt::format(
            "{}, by layer. Baselines are dashed{}.", kind.meaning,
            others > 0 ? fmt::format("; {} further rows are grey and follow one by one", others) : ""));
  }
  for (const auto& kind : kinds) {
    page.figure(
        "", figures::layer_panels(report, looks, fmt::format("{}-each", kind.id), kind.field, kind.label),
        fmt::format("{}, from the first layer to the last: each row before all the others, with its mean.",
                    kind.meaning));
  }
}

void add_positions(Page& page, const VerifyReport& report, const figures::Looks& looks) {
  const auto attention = figures::buckets(report, looks), tokens = figures::token_buckets(report, looks);
  if (attention.empty() && tokens.empty()) return;
  page.heading("By position");
  page.figure("wide", attention, "KL of attention by the position of the query, mean over layers.");
  page.figure("wide", tokens,
              "KL of the next token by its position, the whole model run with the quantised cache.");
}

void add_spectra(Page& page, const std::vector<Spectrum>& spectra) {
  const auto k = figures::spectrum(spectra, Side::K), v = figures::spectrum(spectra, Side::V);
  if (k.empty() && v.empty()) return;
  page.heading("Spectra of the targets");
  page.figure("pair", k + v,
              "Eigenvalues of the second moments that rotations are fitted to, each head's divided by their "
              "sum, mean over "
              "heads; one line for every layer, from the first (light) to the last. A flat line leaves a "
              "rotation nothing to "
              "gain.");
}

void add_clip(Page& page, const std::optional<ClipReport>& clip, const VerifyReport& report) {
  if (!clip) return;
  page.heading("Clip ratios");
  const auto one = [](double ratio) { return ratio <= 0 ? std::string("off") : figures::fixed(ratio, 2); };
  std::string caption = fmt::format(
      "Loss against the clip ratio, on probes {}: the mean over layers in colour, each layer in grey. Dot: "
      "the best (keys {}, "
      "values {}); ring: the published constants ({}, {}). Searched with {} / {}.",
      escape(fmt::format("{}", fmt::join(clip->options.probes, ", "))), one(clip->model_k.best_ratio),
      one(clip->model_v.best_ratio), one(clip->model_k.hand_ratio), one(clip->model_v.hand_ratio),
      escape(clip->objective_k), escape(clip->objective_v));
  if (clip->provenance.model_digest != report.provenance.model_digest)
    caption += " <strong>They were found for another model than the one of this report.</strong>";
  page.figure("pair", figures::clip_curve(*clip, Side::K) + figures::clip_curve(*clip, Side::V), caption);
}

}  // namespace

std::string to_html(const ReportPage& content) {
  const VerifyReport& report = content.report;
  const auto looks = figures::looks(report);
  const auto& provenance = report.provenance;
  const std::string model = escape(provenance.model_name.empty() ? "unnamed model" : provenance.model_name);
  Page page;
  page.add(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>KV cache report: " +
      model + "</title>\n<style>" + std::string(kReportStyle) +
      "</style>\n</head>\n<body>\n<main>\n<header>\n");
  page.add(fmt::format("<h1>What a quantised KV cache costs {}</h1>\n", model));
  page.add(fmt::format("<p class=\"under\">{}<br>model sha256 <code>{}</code></p>\n",
                       escape(provenance.model_path),
                       escape(provenance.model_digest.empty() ? "unknown" : provenance.model_digest)));
  page.add("<p class=\"lead\">" + summary(report) + "</p>\n</header>\n");

  page.heading("Rows");
  page.table(tables::rows(report), tables::rows_caption(report));
  add_bits(page, report, looks);
  add_layers(page, report, looks);
  if (const auto heads = figures::heads(report); !heads.empty()) {
    page.heading("By head");
    page.figure("wide", heads,
                "KL of attention by layer and KV head, for the best rows per bit and the baselines; one "
                "logarithmic scale.");
  }
  add_spectra(page, content.spectra);
  add_positions(page, report, looks);
  add_clip(page, content.clip, report);
  page.heading("Provenance");
  page.table(tables::provenance(provenance), "Where the statistics come from.");
  page.heading("Measurement");
  page.table(tables::measurement(report), "What was measured, and by which code.");
  if (!content.methods.empty()) {
    page.heading("Methods");
    page.table(tables::methods(content.methods),
               "Methods, where they come from, what they store, what they need.");
  }
  if (!content.commands.empty()) {
    page.heading("Commands");
    for (const auto& command : content.commands)
      page.add("<pre><code>" + escape(command) + "</code></pre>\n");
  }
  page.add(fmt::format(
      "</main>\n<footer>oscar-verify {}. The same figures: --json and --csv.</footer>\n</body>\n</html>\n",
      OSCAR_VERSION));
  return std::move(page).text();
}

}  // namespace oscar
