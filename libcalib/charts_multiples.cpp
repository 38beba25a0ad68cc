// Small multiples: a panel for each line, the others behind it, all on one scale.
#include <algorithm>

#include "formats/error.h"
#include "libcalib/charts.h"

namespace oscar::charts {

std::string multiples(const Figure& figure, const std::vector<Series>& series,
                      const std::vector<std::string>& values) {
  std::vector<double> xs, ys;
  for (const auto& line : series) {
    for (const auto& point : line.points) {
      if (!shown(point.y, figure.y.log)) continue;
      xs.push_back(point.x);
      ys.push_back(point.y);
    }
  }
  const auto x = scale_of(xs, figure.x.log), y = scale_of(ys, figure.y.log);
  if (!x || !y) return empty(figure);
  Frame frame{
      .left = 34, .top = 20, .right = figure.width - 2, .bottom = figure.height - 6, .x = *x, .y = *y};
  frame.x.from = frame.left;
  frame.x.to = frame.right;
  frame.y.from = frame.bottom;
  frame.y.to = frame.top;

  // What all panels share is written once.
  std::string text = fmt::format(
      "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><g id=\"{}-all\">", figure.id);
  for (const auto& tick : frame.y.ticks(3)) {
    text += fmt::format(
        "<path class=\"grid\" d=\"M{} {}H{}\"/><text class=\"tick end\" x=\"{}\" y=\"{}\">{}</text>",
        coordinate(frame.left), coordinate(frame.y(tick.at)), coordinate(frame.right),
        coordinate(frame.left - 5), coordinate(frame.y(tick.at) + 3.5), escape(tick.label));
  }
  for (const auto& line : series) text += path({.name = "", .style = "rest", .points = line.points}, frame);
  text += "</g></defs></svg>\n<div class=\"panels\">\n";
  const size_t letters = static_cast<size_t>(figure.width / 6.4) - 7;
  for (size_t i = 0; i < series.size(); ++i) {
    Figure panel = figure;
    panel.id = fmt::format("{}-{}", figure.id, i);
    panel.title = fmt::format("{}: {}", figure.title, series[i].name);
    panel.description = fmt::format("mean {}", values[i]);
    Series line = series[i];
    line.style += " strong";
    text += open(panel) + fmt::format("<use href=\"#{}-all\"/>", figure.id) + path(line, frame);
    text += fmt::format(
        "<text class=\"name\" x=\"0\" y=\"11\">{}</text><text class=\"tick end\" x=\"{}\" "
        "y=\"11\">{}</text></svg>\n",
        escape(shortened(series[i].name, letters)), coordinate(frame.right), escape(values[i]));
  }
  return text + "</div>\n";
}

}  // namespace oscar::charts
