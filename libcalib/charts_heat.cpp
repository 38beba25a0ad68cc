// A heat map: strips of cells over one logarithmic scale of nine steps, with its key.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/charts.h"

namespace oscar::charts {
namespace {

constexpr int kSteps = 9;  // classes h0 … h8

std::string value_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value) : "none";
}

}  // namespace

std::string heat_map(const Figure& figure, const std::vector<std::string>& columns,
                     const std::vector<HeatStrip>& strips) {
  std::vector<double> values;
  size_t most = 1;
  for (const auto& strip : strips) {
    for (const auto& row : strip.rows) values.insert(values.end(), row.begin(), row.end());
    most = std::max(most, strip.rows.size());
  }
  const auto scale = scale_of(values, true);
  if (!scale || columns.empty()) return empty(figure);
  const double left = 56, right = figure.width - 12, top = 44, name = 20, gap = 8;
  const double cell = most <= 4 ? 16 : most <= 12 ? 11 : 6;
  const double wide = (right - left) / static_cast<double>(columns.size());
  double y = top;
  std::string cells;
  for (const auto& strip : strips) {
    cells += fmt::format("<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\n", coordinate(left),
                         coordinate(y + 13), escape(strip.name));
    y += name;
    for (size_t r = 0; r < strip.rows.size(); ++r) {
      if (most <= 12 || r % 8 == 0) {
        cells += fmt::format("<text class=\"tick end\" x=\"{}\" y=\"{}\">{}</text>", coordinate(left - 8),
                             coordinate(y + cell / 2 + 4), r);
      }
      for (size_t c = 0; c < std::min(columns.size(), strip.rows[r].size()); ++c) {
        const double value = strip.rows[r][c];
        std::string step = "hn";
        if (value <= 0) step = "h0";
        if (shown(value, true)) {
          const double share = std::log(value / scale->low) / std::log(scale->high / scale->low);
          step = fmt::format("h{}", std::clamp(static_cast<int>(share * kSteps), 0, kSteps - 1));
        }
        cells += fmt::format(
            "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>{} {}, row {}: "
            "{}</title></rect>",
            step, left + wide * static_cast<double>(c), coordinate(y), wide - 1, coordinate(cell - 1),
            escape(figure.x.label), escape(columns[c]), r, value_text(value));
      }
      cells += '\n';
      y += cell;
    }
    y += gap;
  }
  const size_t every = std::max<size_t>(1, columns.size() / 20 + (columns.size() % 20 != 0));
  for (size_t c = 0; c < columns.size(); c += every) {
    cells += fmt::format("<text class=\"tick mid\" x=\"{:.1f}\" y=\"{}\">{}</text>",
                         left + wide * (static_cast<double>(c) + 0.5), coordinate(y + 9), escape(columns[c]));
  }
  cells += fmt::format("<text class=\"label mid\" x=\"{}\" y=\"{}\">{}</text>\n",
                       coordinate((left + right) / 2), coordinate(y + 28), escape(figure.x.label));

  Figure grown = figure;
  grown.height = y + 36;
  std::string text = open(grown);
  text += fmt::format("<text class=\"label\" x=\"0\" y=\"13\">{}</text>", escape(figure.y.label));
  const double key = 20, from = right - key * kSteps;
  for (int step = 0; step < kSteps; ++step) {
    text += fmt::format("<rect class=\"h{}\" x=\"{}\" y=\"4\" width=\"{}\" height=\"11\"/>", step,
                        coordinate(from + key * step), coordinate(key));
  }
  Scale along = *scale;
  along.from = from;
  along.to = right;
  for (const auto& tick : along.ticks(4)) {
    text += fmt::format("<text class=\"tick mid\" x=\"{}\" y=\"29\">{}</text>", coordinate(along(tick.at)),
                        escape(tick.label));
  }
  return text + '\n' + cells + "</svg>\n";
}

}  // namespace oscar::charts
