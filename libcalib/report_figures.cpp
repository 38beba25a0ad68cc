#include "libcalib/report_figures.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/error.h"
#include "libcalib/charts.h"
#include "libcalib/ranking.h"

namespace oscar::figures {

using charts::Figure;
using charts::Series;

std::string fixed(double value, int decimals) {
  if (std::isnan(value)) return "–";
  if (std::isinf(value)) return value > 0 ? "∞" : "−∞";
  return fmt::format("{:.{}f}", value, decimals);
}

std::string loss(double value) {
  if (!std::isfinite(value) || value == 0 || std::abs(value) >= 9.5e-4) return fixed(value, 4);
  auto text = fmt::format("{:.1e}", value);  // 2.3e-05
  const auto e = text.find('e');
  std::string exponent;
  for (const char c : std::to_string(std::abs(std::stoi(text.substr(e + 1))))) {
    static constexpr const char* digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    exponent += digits[c - '0'];
  }
  return text.substr(0, e) + "·10⁻" + exponent;
}

Looks looks(const VerifyReport& report) {
  static const std::map<std::string, std::string> baselines{
      {"naive", "b0"}, {"clip", "b1"}, {"hadamard", "b2"}, {"hadamard+clip", "b3"}};
  Looks result;
  int colours = 0;
  for (const auto* row : by_loss_per_bit(report)) {
    const auto baseline = baselines.find(row->name);
    if (baseline != baselines.end())
      result[row] = {baseline->second, true};
    else if (colours < 6)
      result[row] = {fmt::format("c{}", colours++), true};
    else
      result[row] = {"rest", false};
  }
  return result;
}

namespace {

// Grey ones first and the best last, so that the best lie on top.
std::vector<const RowReport*> back_to_front(const VerifyReport& report, const Looks& looks) {
  auto rows = by_loss_per_bit(report);
  std::ranges::reverse(rows);
  std::ranges::stable_sort(rows, {}, [&](const RowReport* row) { return looks.at(row).featured; });
  return rows;
}

std::vector<charts::Point> layer_points(const RowReport& row, double LayerDiagnostics::*field) {
  std::vector<charts::Point> points;
  for (const auto& layer : row.layers) points.push_back({static_cast<double>(layer.layer), layer.*field});
  return points;
}

std::vector<charts::Tick> whole_ticks(const std::set<int>& values, size_t about) {
  std::vector<charts::Tick> ticks;
  const size_t every = std::max<size_t>(1, (values.size() + about - 1) / about);
  size_t i = 0;
  for (const int value : values) {
    if (i++ % every == 0) ticks.push_back({static_cast<double>(value), std::to_string(value)});
  }
  return ticks;
}

std::set<int> layer_ids(const VerifyReport& report) {
  std::set<int> ids;
  for (const auto& row : report.rows) {
    for (const auto& layer : row.layers) ids.insert(layer.layer);
  }
  return ids;
}

std::string range(int64_t first, int64_t last) {
  return fmt::format("{}–{}", first, last - 1);
}

}  // namespace

std::string loss_versus_bits(const VerifyReport& report, const Looks& looks) {
  const bool token_kl = ranks_by_token_kl(report);
  const std::string what = token_kl ? "token KL (nats)" : "attention KL (nats)";
  Figure figure{.id = "bits",
                .title = "Loss against bits",
                .description =
                    "One mark for every row: mean bits an element across, " + what + " upwards, logarithmic.",
                .height = 580,
                .x = {.label = "mean bits an element, K and V, with metadata"},
                .y = {.label = what, .log = true}};
  std::vector<charts::Mark> marks;
  std::vector<charts::Point> corners;
  for (const auto* row : back_to_front(report, looks)) {
    const charts::Point at{mean_bits(*row), row_loss(*row, token_kl)};
    if (at.x >= kExactBits || !charts::shown(at.y, true)) continue;
    marks.push_back({row->name, looks.at(row).style, at});
    corners.push_back(at);
  }
  if (marks.empty()) return "";
  // Rows that no other row beats in both.
  std::ranges::stable_sort(corners, {}, [](const charts::Point& p) { return std::pair(p.x, p.y); });
  Series front{.name = "no row has fewer bits and less loss", .style = "front"};
  for (const auto& corner : corners) {
    if (!front.points.empty() && corner.y >= front.points.back().y) continue;
    if (!front.points.empty()) front.points.push_back({corner.x, front.points.back().y});
    front.points.push_back(corner);
  }
  front.points.push_back({kExactBits, front.points.back().y});
  const auto* best = by_loss_per_bit(report).front();
  Series equal{.name = "as good a bit as " + best->name, .style = "guide"};
  for (const double bits : {0.0, kExactBits})
    equal.points.push_back({bits, loss_per_bit(*best, token_kl) * std::pow(4.0, 2 - bits)});
  return charts::scatter(figure, marks, {equal, front});
}

std::string layers(const VerifyReport& report, const Looks& looks, const std::string& id,
                   double LayerDiagnostics::*field, const std::string& label) {
  Figure figure{.id = id,
                .title = label + " by layer",
                .description = "One line for every row over the decoder layers, logarithmic.",
                .x = {.label = "layer", .ticks = whole_ticks(layer_ids(report), 20)},
                .y = {.label = label, .log = true}};
  std::vector<Series> series;
  for (const auto* row : back_to_front(report, looks)) {
    series.push_back({.name = row->name,
                      .style = looks.at(row).style,
                      .points = layer_points(*row, field),
                      .labelled = looks.at(row).featured});
  }
  return charts::lines(figure, series);
}

std::string layer_panels(const VerifyReport& report, const Looks& looks, const std::string& id,
                         double LayerDiagnostics::*field, const std::string& label) {
  if (std::ranges::all_of(looks, [](const auto& entry) { return entry.second.featured; })) return "";
  Figure figure{.id = id,
                .title = label + " by layer",
                .description = {},
                .width = 200,
                .height = 104,
                .x = {.label = "layer"},
                .y = {.label = label, .log = true}};
  std::vector<Series> series;
  std::vector<std::string> values;
  for (const auto* row : by_loss_per_bit(report)) {
    series.push_back({.name = row->name, .style = looks.at(row).style, .points = layer_points(*row, field)});
    values.push_back(loss(row->mean.*field));
  }
  return charts::multiples(figure, series, values);
}

std::vector<const RowReport*> heat_rows(const VerifyReport& report) {
  std::vector<const RowReport*> rows;
  size_t best = 0;
  for (const auto* row : by_loss_per_bit(report)) {
    const bool heads =
        std::ranges::any_of(row->layers, [](const auto& layer) { return !layer.head_kl.empty(); });
    const bool baseline = row->name == "naive" || row->name == "hadamard+clip";
    if (heads && (baseline || best++ < 4)) rows.push_back(row);
  }
  return rows;
}

std::string heads(const VerifyReport& report) {
  std::vector<std::string> columns;
  const auto ids = layer_ids(report);
  for (const int id : ids) columns.push_back(std::to_string(id));
  std::vector<charts::HeatStrip> strips;
  for (const auto* row : heat_rows(report)) {
    size_t most = 0;
    for (const auto& layer : row->layers) most = std::max(most, layer.head_kl.size());
    charts::HeatStrip strip{row->name, {most, std::vector<double>(columns.size(), std::nan(""))}};
    for (const auto& layer : row->layers) {
      const auto column = static_cast<size_t>(std::distance(ids.begin(), ids.find(layer.layer)));
      for (size_t h = 0; h < layer.head_kl.size(); ++h) strip.rows[h][column] = layer.head_kl[h];
    }
    strips.push_back(std::move(strip));
  }
  if (strips.empty()) return "";
  return charts::heat_map(
      {.id = "heads",
       .title = "Attention KL by layer and KV head",
       .description = "For each chosen row a strip of cells: layers across, heads downwards.",
       .x = {.label = "layer"},
       .y = {.label = "KV head: attention KL (nats)"}},
      columns, strips);
}

std::string spectrum(const std::vector<Spectrum>& spectra, Side side) {
  const bool keys = side == Side::K;
  std::vector<Series> series;
  const size_t last = spectra.empty() ? 0 : spectra.size() - 1;
  for (size_t i = 0; i < spectra.size(); ++i) {
    const auto& values = keys ? spectra[i].k : spectra[i].v;
    Series line{.name = fmt::format("layer {}", spectra[i].layer),
                .style = fmt::format("d{}", last == 0 ? 0 : i * 6 / last),
                .labelled = i == 0 || i == last / 2 || i == last};
    // Below the precision of what was summed there is nothing to see.
    for (size_t r = 0; r < values.size(); ++r)
      line.points.push_back({static_cast<double>(r + 1), values[r] > 1e-12 ? values[r] : std::nan("")});
    if (!values.empty()) series.push_back(std::move(line));
  }
  if (series.empty()) return "";
  return charts::lines(
      {.id = keys ? "spectrum-k" : "spectrum-v",
       .title = keys ? "Spectra of qqt, the target of keys" : "Spectra of sst, the target of values",
       .description = "One line for every layer: share of the trace by rank, logarithmic.",
       .width = 505,
       .height = 300,
       .x = {.label = "rank"},
       .y = {.label = keys ? "keys, qqt: eigenvalue / trace" : "values, sst: eigenvalue / trace",
             .log = true}},
      series);
}

namespace {

std::string bucket_lines(const std::string& id, const std::string& label, std::vector<charts::Tick> ticks,
                         const std::vector<Series>& series) {
  return charts::lines({.id = id,
                        .title = label + " by position",
                        .description = "One line for every row over ranges of query positions, logarithmic.",
                        .height = 260,
                        .x = {.label = "query positions", .ticks = std::move(ticks)},
                        .y = {.label = label, .log = true}},
                       series);
}

}  // namespace

std::string buckets(const VerifyReport& report, const Looks& looks) {
  if (report.buckets.size() < 2) return "";
  std::vector<charts::Tick> ticks;
  for (size_t b = 0; b < report.buckets.size(); ++b)
    ticks.push_back({static_cast<double>(b), range(report.buckets[b].first, report.buckets[b].last)});
  std::vector<Series> series;
  for (const auto* row : back_to_front(report, looks)) {
    Series line{.name = row->name,
                .style = looks.at(row).style,
                .labelled = looks.at(row).featured,
                .dots = looks.at(row).featured};
    for (size_t b = 0; b < report.buckets.size(); ++b)
      line.points.push_back({static_cast<double>(b), bucket_mean(*row, &LayerDiagnostics::bucket_kl, b)});
    if (std::ranges::any_of(line.points, [](const auto& p) { return std::isfinite(p.y); }))
      series.push_back(std::move(line));
  }
  return series.empty() ? "" : bucket_lines("position", "attention KL (nats)", std::move(ticks), series);
}

std::string token_buckets(const VerifyReport& report, const Looks& looks) {
  std::map<int64_t, int64_t> ranges;  // of all rows
  for (const auto& row : report.rows) {
    if (!row.end_to_end) continue;
    for (const auto& bucket : row.end_to_end->buckets) ranges[bucket.first] = bucket.last;
  }
  if (ranges.size() < 2) return "";
  std::vector<charts::Tick> ticks;
  std::map<int64_t, double> at;
  for (const auto& [first, last] : ranges) {
    at[first] = static_cast<double>(ticks.size());
    ticks.push_back({at[first], range(first, last)});
  }
  std::vector<Series> series;
  for (const auto* row : back_to_front(report, looks)) {
    if (!row->end_to_end) continue;
    Series line{.name = row->name,
                .style = looks.at(row).style,
                .labelled = looks.at(row).featured,
                .dots = looks.at(row).featured};
    for (const auto& bucket : row->end_to_end->buckets)
      line.points.push_back({at.at(bucket.first), bucket.figures.token_kl});
    if (!line.points.empty()) series.push_back(std::move(line));
  }
  return series.empty() ? "" : bucket_lines("token-position", "token KL (nats)", std::move(ticks), series);
}

std::string clip_curve(const ClipReport& clip, Side side) {
  const bool keys = side == Side::K;
  const auto& model = keys ? clip.model_k : clip.model_v;
  std::set<double> grid(model.ratio.begin(), model.ratio.end());
  for (const auto& [id, curve] : keys ? clip.k : clip.v) grid.insert(curve.ratio.begin(), curve.ratio.end());
  if (grid.empty()) return "";
  // No clip (0) is the weakest one: a step beyond the largest ratio.
  const double largest = *grid.rbegin() > 0 ? *grid.rbegin() : 1;
  const double off = std::max(largest, 1.0) + 0.015;
  const auto place = [&](double ratio) { return ratio <= 0 ? off : ratio; };
  const auto line = [&](const ClipCurve& curve, std::string name, std::string style) {
    Series series{.name = std::move(name), .style = std::move(style)};
    for (size_t i = 0; i < std::min(curve.ratio.size(), curve.loss.size()); ++i)
      series.points.push_back({place(curve.ratio[i]), curve.loss[i]});
    std::ranges::stable_sort(series.points, {}, &charts::Point::x);
    return series;
  };
  std::vector<Series> series;
  for (const auto& [id, curve] : keys ? clip.k : clip.v)
    series.push_back(line(curve, fmt::format("layer {}", id), "rest"));
  series.push_back(line(model, "mean over layers", "c0 strong"));
  series.push_back({.name = "published constant",
                    .style = "ring",
                    .points = {{place(model.hand_ratio), model.hand_loss}},
                    .dots = true});
  series.push_back({.name = "best",
                    .style = "c0 best",
                    .points = {{place(model.best_ratio), model.best_loss}},
                    .dots = true});
  std::vector<charts::Tick> ticks;
  for (const double ratio : grid) {
    const bool close = !ticks.empty() && ratio - ticks.back().at < 0.035;
    if (ratio > 0 && !close && off - ratio > 0.025) ticks.push_back({ratio, fmt::format("{:.2f}", ratio)});
  }
  ticks.push_back({off, "off"});
  return charts::lines(
      {.id = keys ? "clip-k" : "clip-v",
       .title = keys ? "Loss against the clip ratio of keys" : "Loss against the clip ratio of values",
       .description = "The mean over layers in colour, every layer in grey, logarithmic.",
       .width = 505,
       .height = 280,
       .x = {.label = "clip ratio", .ticks = std::move(ticks)},
       .y = {.label = keys ? "keys: attention KL (nats)" : "values: output error", .log = true}},
      series);
}

}  // namespace oscar::figures
