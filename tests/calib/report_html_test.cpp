// The HTML page and the CSV of a verification: well-formed, complete, in order, the same bytes each time, and
// safe against what models and methods are called.
#include "libcalib/report_html.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/error.h"
#include "libcalib/charts.h"
#include "libcalib/ranking.h"
#include "tests/support/support.h"

namespace oscar::test {
namespace {

const std::string kHostile = "</title><script>alert(\"1\")</script> & 'x' \x01 \xE2\x82\xAC";

LayerDiagnostics layer(int id, double kl) {
  LayerDiagnostics d{.layer = id, .attention_kl = kl, .top1 = .9, .output_error = kl / 2};
  d.snr_k = INFINITY;
  d.head_kl = {kl, std::nan(""), 0};
  d.head_output_error = {kl, kl, kl};
  d.bucket_kl = {kl / 2, 2 * kl};
  d.bucket_output_error = {kl / 3, kl};
  return d;
}
EndToEndResult end_to_end(double perplexity, double token_kl) {
  return {{perplexity, token_kl, .8},
          {{64, 128, 10, {perplexity, token_kl / 2, .9}}, {128, 256, 20, {perplexity, token_kl, .7}}}};
}
RowReport row(std::string name, double bits, double kl) {
  return {.name = std::move(name),
          .k = {.codec = "4x8", .objective = "awvq", .bits = bits},
          .v = {.codec = "8x8", .objective = "awvq", .clip = .92, .bits = bits},
          .mean = layer(-1, kl),
          .layers = {layer(0, kl / 2), layer(3, kl), layer(7, 1.5 * kl)}};
}
VerifyReport sample() {
  VerifyReport report;
  report.windows = {64, 256};
  report.first_query = 64;
  report.probes = {0, 1};
  report.probe_tokens = {256, 200};
  report.buckets = {{64, 128}, {128, 256}};
  report.path = "packed <INT2>";
  report.provenance.model_name = kHostile;
  report.provenance.model_digest = "abc";
  report.provenance.dtype = "bfloat16";
  report.provenance.sequence_lengths = {4096, 4096, 100};
  report.rows = {row("naive", 2.5, .5), row("hadamard+clip", 2.5, .2), row("mine, \"2\"", 2, .1),
                 row("one bit", 1, .3)};
  report.rows.push_back(row("exact codec", 32, 0));
  return report;
}
// Every part there is, and more rows than there are colours.
ReportPage full() {
  ReportPage page{.report = sample()};
  for (int i = 0; i < 9; ++i)
    page.report.rows.push_back(row(kHostile + std::to_string(i), 2 + .1 * i, .15 + .01 * i));
  double loss = .9;
  for (auto& row : page.report.rows) row.end_to_end = end_to_end(20, loss *= .8);
  page.report.exact = end_to_end(18, 0);
  page.spectra = {{0, {.6, .3, .1}, {.9, .1, 0}}, {3, {.4, .3, .3}, {}}};
  const ClipCurve curve{{0, .9, .96}, {.3, .1, .2}, .9, .1, .96, .2};
  page.clip.emplace();
  page.clip->objective_k = kHostile;
  page.clip->k = page.clip->v = {{3, curve}};
  page.clip->model_k = page.clip->model_v = curve;
  page.commands = {"oscar-verify 'a&b' < x"};
  page.methods = {{kHostile, "a paper", "codes", "nothing"}};
  return page;
}

// "" when every element that is opened is closed in order, attributes are quoted, no < or & is bare and no id
// is given twice.
std::string flaw(const std::string& html) {
  static const std::set<std::string> single{"meta", "br"};
  std::vector<std::string> open;
  std::set<std::string> ids;
  for (size_t at = 0; at < html.size(); ++at) {
    if (html[at] == '&') {
      const auto end = html.find(';', at);
      if (end == std::string::npos || end - at > 6) return "bare & at " + html.substr(at, 40);
    }
    if (html[at] == '>') return "bare > at " + html.substr(at, 40);
    if (html[at] != '<') continue;
    const auto end = html.find('>', at);
    if (end == std::string::npos) return "unfinished tag";
    std::string tag = html.substr(at + 1, end - at - 1);
    at = end;
    if (tag.starts_with("!")) continue;
    const bool closing = tag.starts_with("/"), closed = tag.ends_with("/");
    if (std::ranges::count(tag, '"') % 2 != 0 || tag.find('<') != std::string::npos)
      return "attributes of " + tag;
    if (const auto id = tag.find(" id=\""); id != std::string::npos) {
      const auto name = tag.substr(id + 5, tag.find('"', id + 5) - id - 5);
      if (!ids.insert(name).second) return "id twice: " + name;
    }
    const auto from = closing ? 1 : 0;
    const auto name = tag.substr(from, tag.find_first_of(" /\n", from) - from);
    if (closing) {
      if (open.empty() || open.back() != name)
        return "closes " + name + (open.empty() ? "" : " inside " + open.back());
      open.pop_back();
    } else if (!closed && !single.contains(name)) {
      open.push_back(name);
    }
    if (name == "style" && !closing) at = html.find("</style>", at) - 1;  // text of another language
  }
  return open.empty() ? "" : "never closes " + open.back();
}

std::vector<ReportPage> pages() {
  ReportPage plain{.report = sample()}, mixed{.report = sample()}, bare, silent{.report = sample()};
  plain.report.buckets.clear();
  mixed.report.rows[1].end_to_end = end_to_end(30, std::nan(""));
  mixed.report.rows[2].end_to_end = end_to_end(NAN, .01);
  for (auto& row : silent.report.rows) {
    row.mean.attention_kl = NAN;
    for (auto& layer : row.layers)
      layer = {.layer = layer.layer, .attention_kl = NAN, .output_error = INFINITY};
  }
  ReportPage one{.report = sample()};
  one.report.rows.resize(1);
  one.report.rows[0].layers.resize(1);
  one.clip = ClipReport{};
  ReportPage lossless{.report = sample()};
  lossless.report.rows[2].mean.attention_kl = 0;
  return {full(), plain, mixed, bare, silent, one, lossless};
}

TEST(ReportHtml, IsWellFormedWhateverIsMissing) {
  EXPECT_NE(flaw("<p><b></p></b>"), "");
  EXPECT_NE(flaw("<p>"), "");
  EXPECT_NE(flaw("<p>a & b</p>"), "");
  EXPECT_NE(flaw("<p id=\"a\"></p><p id=\"a\"></p>"), "");
  int i = 0;
  for (const auto& page : pages()) EXPECT_EQ(flaw(to_html(page)), "") << "page " << i++;
}

TEST(ReportHtml, NeedsNothingElse) {
  const auto html = to_html(full());
  for (const char* word :
       {"http://", "https://", "//", "<script", "<link", "<img", "@import", "src=", "javascript:"})
    EXPECT_EQ(html.find(word), std::string::npos) << word;
  for (size_t at = html.find("href="); at != std::string::npos; at = html.find("href=", at + 1))
    EXPECT_EQ(html.substr(at + 5, 2), "\"#");
  for (size_t at = html.find("url("); at != std::string::npos; at = html.find("url(", at + 1))
    EXPECT_EQ(html[at + 4], '#');
}

TEST(ReportHtml, NeverWritesAFigureThatIsNone) {
  for (const auto& page : pages()) {
    const auto html = to_html(page);
    for (const std::string word : {"nan", "inf"}) {  // as words: "provenance" has one inside
      for (size_t at = html.find(word); at != std::string::npos; at = html.find(word, at + 1)) {
        const bool whole = !std::isalpha(static_cast<unsigned char>(html[at - 1])) &&
                           !std::isalpha(static_cast<unsigned char>(html[at + 3]));
        EXPECT_FALSE(whole) << html.substr(at - 40, 80);
      }
    }
  }
}

TEST(ReportHtml, EscapesEveryStringFromOutside) {
  const auto html = to_html(full());
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert(&quot;1&quot;)"), std::string::npos);
  EXPECT_NE(html.find("packed &lt;INT2&gt;"), std::string::npos);
  EXPECT_NE(html.find("oscar-verify &#39;a&amp;b&#39; &lt; x"), std::string::npos);
  EXPECT_EQ(charts::shortened("aä€b", 3), "aä…");
  EXPECT_EQ(charts::shortened("aä€", 3), "aä€");
}

TEST(ReportHtml, ShowsEveryRowInOrderOfLossPerBit) {
  const auto html = to_html({.report = sample()});
  // .1 at 2 bits; .3 at 1 is .075 at 2; .2 at 2.5 is .4; .5 is 1; what saves nothing comes last.
  size_t last = 0;
  for (const char* name : {"one bit", "mine, &quot;2&quot;", "hadamard+clip", "naive", "exact codec"}) {
    const auto at = html.find("<tr><th scope=\"row\">" + std::string(name) + "<small>");
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GT(at, last) << name;
    last = at;
  }
  EXPECT_NE(html.find("<strong>one bit</strong> loses least per bit: at 1.00 bits"), std::string::npos);
  EXPECT_NE(html.find("40.0 % less than <em>naive</em>"), std::string::npos);
  EXPECT_EQ(html.find("token KL"), std::string::npos);
  const auto page = full();
  const auto all = to_html(page);
  for (const auto& row : page.report.rows)
    EXPECT_NE(all.find("<th scope=\"row\">" + charts::escape(row.name) + "<small>"), std::string::npos)
        << row.name;
}

TEST(ReportHtml, WithTokenKlRowsWithoutItComeLast) {
  auto report = sample();
  EXPECT_FALSE(ranks_by_token_kl(report));
  report.rows[0].end_to_end = end_to_end(20, .3);
  report.rows[2].end_to_end = end_to_end(20, .4);
  report.exact = end_to_end(18, 0);
  EXPECT_TRUE(ranks_by_token_kl(report));
  const auto rows = by_loss(report);
  EXPECT_EQ(rows[0]->name, "naive");
  EXPECT_EQ(rows[1]->name, "mine, \"2\"");
  EXPECT_EQ(rows[2]->name, "hadamard+clip");
  EXPECT_EQ(by_loss_per_bit(report)[0]->name, "mine, \"2\"");
  EXPECT_DOUBLE_EQ(loss_per_bit(report.rows[0], true), .6);
  const auto html = to_html({.report = report});
  EXPECT_NE(html.find("BF16 (exact)"), std::string::npos);
  EXPECT_NE(html.find("the exact cache has 18.00 (+11.1 %)"), std::string::npos);
  EXPECT_NE(html.find("Not shown, for want of a loss or of savings: hadamard+clip, one bit, exact codec."),
            std::string::npos);
  const auto text = to_text(report, false);
  EXPECT_NE(text.find("token KL"), std::string::npos) << text;
  EXPECT_LT(text.find("\nBF16 (exact)"), text.find("\nnaive")) << text;
  EXPECT_LT(text.find("\nnaive"), text.find("\nmine")) << text;
  EXPECT_LT(text.find("\nmine"), text.find("\nhadamard+clip")) << text;
  EXPECT_EQ(to_text(sample(), false).find("token KL"), std::string::npos);
}

TEST(ReportHtml, SaysWhereARowHasWindowsOfItsOwn) {
  auto report = sample();
  EXPECT_EQ(to_html({.report = report}).find("exact windows"), std::string::npos);
  report.rows[3].windows = Windows{4, 128};
  EXPECT_NE(to_html({.report = report})
                .find("<th scope=\"row\">one bit<small>awvq, clip off / 0.92, exact windows 4 and 128"),
            std::string::npos);
}

TEST(ReportHtml, SamePageSameBytes) {
  EXPECT_EQ(to_html(full()), to_html(full()));
}

TEST(ReportHtml, NumbersItsFiguresAndSaysWhenTheClipIsForeign) {
  const auto html = to_html(full());
  for (int i = 1; i <= 10; ++i)
    EXPECT_NE(html.find(fmt::format("<b>Figure {}.</b>", i)), std::string::npos) << i;
  EXPECT_NE(html.find("found for another model"), std::string::npos);
  auto page = full();
  page.clip->provenance.model_digest = "abc";
  EXPECT_EQ(to_html(page).find("found for another model"), std::string::npos);
}

TEST(ReportHtml, ThirtyLayersAndTwentyFiveRowsStaySmall) {
  VerifyReport report = sample();
  report.rows.clear();
  for (int r = 0; r < 25; ++r) {
    report.rows.push_back(row(fmt::format("row {}", r), 2, .01 * (r + 1)));
    report.rows.back().layers.clear();
    for (int i = 0; i < 30; ++i) {
      report.rows.back().layers.push_back(layer(i, .01 * (r + 1) * (1 + i % 7)));
      report.rows.back().layers.back().head_kl.assign(8, .01 * r);
    }
  }
  ReportPage page{.report = report};
  for (int i = 0; i < 30; ++i)
    page.spectra.push_back({i, std::vector<double>(128, .5), std::vector<double>(128, .1)});
  EXPECT_LT(to_html(page).size(), 1u << 20);
}

TEST(Charts, TicksAreNice) {
  const auto labels = [](charts::Scale scale, int about) {
    std::string text;
    for (const auto& tick : scale.ticks(about)) text += tick.label + " ";
    return text;
  };
  EXPECT_EQ(labels({.low = .93, .high = 2.6}, 4), "1.0 1.5 2.0 2.5 ");
  EXPECT_EQ(labels({.low = -3, .high = 31}, 8), "0 5 10 15 20 25 30 ");
  EXPECT_EQ(labels({.low = .003, .high = .3, .log = true}, 8), "0.005 0.01 0.02 0.05 0.1 0.2 ");
  EXPECT_EQ(labels({.low = 1e-7, .high = 200, .log = true}, 5), "10⁻⁶ 10⁻⁴ 0.01 1 100 ");
}

TEST(Charts, NamesInAScatterDoNotOverlap) {
  charts::Figure figure{
      .id = "x", .title = "t", .description = "d", .height = 480, .y = {.label = "y", .log = true}};
  std::vector<charts::Mark> marks;
  for (int i = 0; i < 12; ++i) marks.push_back({fmt::format("a name {}", i), "c0", {2.5, std::pow(1.03, i)}});
  marks.push_back({"alone", "c0", {1, 20}});
  const auto svg = charts::scatter(figure, marks, {});
  std::vector<std::pair<double, double>> at;
  const std::string text = "<text class=\"name\" x=\"";
  for (size_t from = svg.find(text); from != std::string::npos; from = svg.find(text, from + 1)) {
    const auto y = svg.find("y=\"", from);
    at.emplace_back(std::stod(svg.substr(from + text.size())), std::stod(svg.substr(y + 3)));
  }
  ASSERT_EQ(at.size(), marks.size());
  for (size_t i = 0; i < at.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      EXPECT_TRUE(std::abs(at[i].second - at[j].second) >= 14.9 || std::abs(at[i].first - at[j].first) >= 60)
          << i << " " << j;
  }
}

// Fields of each line by RFC 4180.
std::vector<std::vector<std::string>> parse(const std::string& csv) {
  std::vector<std::vector<std::string>> lines{{""}};
  bool inside = false;
  for (size_t i = 0; i < csv.size(); ++i) {
    auto& field = lines.back().back();
    if (inside) {
      if (csv[i] != '"')
        field += csv[i];
      else if (i + 1 < csv.size() && csv[i + 1] == '"')
        field += csv[++i];
      else
        inside = false;
    } else if (csv[i] == '"') {
      inside = true;
    } else if (csv[i] == ',') {
      lines.back().emplace_back();
    } else if (csv[i] == '\r' && csv[i + 1] == '\n') {
      lines.emplace_back(1, "");
      ++i;
    } else {
      field += csv[i];
    }
  }
  EXPECT_FALSE(inside);
  EXPECT_EQ(lines.back(), std::vector<std::string>{""}) << "the last line ends";
  lines.pop_back();
  return lines;
}

TEST(ReportCsv, HasAsManyFieldsInEachLine) {
  auto page = full();
  page.report.rows[0].layers[1].bucket_kl.clear();
  const auto lines = parse(to_csv(page.report));
  ASSERT_EQ(lines.size(), 2 + page.report.rows.size() * 4);
  for (const auto& line : lines) EXPECT_EQ(line.size(), lines[0].size()) << line[0] << " " << line[1];
  const auto column = [&](const std::string& name) {
    return static_cast<size_t>(std::ranges::find(lines[0], name) - lines[0].begin());
  };
  for (const char* name :
       {"row", "layer", "codec_k", "bits_v", "attention_kl", "snr_k", "attention_kl_64_128",
        "output_error_128_256", "e2e_perplexity", "e2e_token_kl", "e2e_top1"})
    ASSERT_LT(column(name), lines[0].size()) << name;
  EXPECT_EQ(lines[1][0], "BF16 (exact)");
  EXPECT_EQ(lines[1][column("e2e_perplexity")], "18");
  EXPECT_EQ(lines[1][column("attention_kl")], "");
  const auto& mine = lines[2 + 2 * 4 + 3];
  EXPECT_EQ(mine[0], "mine, \"2\"");
  EXPECT_EQ(mine[1], "mean");
  EXPECT_EQ(mine[column("attention_kl")], "0.1");
  EXPECT_EQ(mine[column("snr_k")], "") << "infinite";
  EXPECT_EQ(mine[column("attention_kl_128_256")], "0.2");
  EXPECT_EQ(mine[column("e2e_perplexity")], "20");
  const auto& before = lines[2 + 2 * 4 + 2];
  EXPECT_EQ(before[1], "7");
  EXPECT_EQ(before[column("e2e_perplexity")], "");
  EXPECT_EQ(before[column("codec_v")], "8x8");
}

TEST(ReportJson, HasBucketsAndEndToEnd) {
  auto report = sample();
  report.rows[1].end_to_end = end_to_end(NAN, .01);
  report.rows[1].layers[0].bucket_kl[1] = NAN;
  auto json = to_json(report);
  EXPECT_FALSE(json.contains("exact"));
  EXPECT_FALSE(json["rows"][0].contains("end_to_end"));
  EXPECT_EQ(json["buckets"][1]["first"], 128);
  EXPECT_EQ(json["buckets"][1]["last"], 256);
  EXPECT_EQ(json["rows"][0]["mean"]["bucket_kl"][1], 1.);
  EXPECT_EQ(json["rows"][0]["layers"][1]["bucket_output_error"].size(), 2u);
  EXPECT_TRUE(json["rows"][1]["layers"][0]["bucket_kl"][1].is_null());
  const auto& end = json["rows"][1]["end_to_end"];
  EXPECT_TRUE(end["perplexity"].is_null());
  EXPECT_EQ(end["token_kl"], .01);
  EXPECT_EQ(end["top1"], .8);
  EXPECT_EQ(end["buckets"][1]["first"], 128);
  EXPECT_EQ(end["buckets"][1]["count"], 20);
  EXPECT_EQ(end["buckets"][0]["token_kl"], .005);
  report.exact = end_to_end(18, 0);
  EXPECT_EQ(to_json(report)["exact"]["perplexity"], 18.);
}

TEST(ReportJson, ClipCurvesAreReadBack) {
  TempDir folder;
  auto report = *full().clip;
  report.options.probes = {2, 3};
  report.provenance.model_digest = "abc";
  report.objective_k = "qqt_r_h_pbr";
  write(folder / "clip.json", to_json(report).dump());
  const auto back = read_clip_report(folder / "clip.json");
  EXPECT_EQ(back.model_k.ratio, report.model_k.ratio);
  EXPECT_EQ(back.v.at(3).loss, report.v.at(3).loss);
  EXPECT_EQ(back.model_v.best_ratio, .9);
  EXPECT_EQ(back.model_v.hand_loss, .2);
  EXPECT_EQ(back.options.probes, (std::vector<int>{2, 3}));
  EXPECT_EQ(back.objective_k, "qqt_r_h_pbr");
  EXPECT_EQ(back.provenance.model_digest, "abc");
  auto json = to_json(report);
  json["k"].erase("curve");
  write(folder / "clip.json", json.dump());
  EXPECT_THROW(read_clip_report(folder / "clip.json"), std::runtime_error);
}

}  // namespace
}  // namespace oscar::test
