#include "libcalib/charts.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"

namespace oscar::charts {

std::string escape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 32 && c != '\n' ? ' ' : c;
    }
  }
  return result;
}

std::string shortened(std::string_view text, size_t length) {
  size_t count = 0, cut = text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;  // inside a character
    if (count == length - 1) cut = i;
    ++count;
  }
  return count <= length ? std::string(text) : std::string(text.substr(0, cut)) + "…";
}

std::string coordinate(double value) {
  auto text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

bool shown(double value, bool log) {
  return std::isfinite(value) && (!log || value > 0);
}

double Scale::operator()(double value) const {
  const auto linear = [&](double x) { return log ? std::log10(x) : x; };
  return from + (to - from) * (linear(value) - linear(low)) / (linear(high) - linear(low));
}

namespace {

std::string superscript(int value) {
  static constexpr const char* digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text = value < 0 ? "⁻" : "";
  for (const char c : std::to_string(std::abs(value))) text += digits[c - '0'];
  return text;
}
// m * 10^exponent, m of 1, 2, 5.
std::string tick_label(int m, int exponent) {
  if (exponent >= -3 && exponent <= 4) {
    return exponent >= 0 ? fmt::format("{:.0f}", m * std::pow(10, exponent))
                         : fmt::format("{:.{}f}", m * std::pow(10, exponent), -exponent);
  }
  return (m == 1 ? "" : fmt::format("{}·", m)) + "10" + superscript(exponent);
}

std::vector<Tick> log_ticks(double low, double high, int about) {
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const auto with = [&](const std::vector<int>& mantissas, int step) {
    std::vector<Tick> ticks;
    for (int e = first; e <= last; ++e) {
      if (e % step != 0) continue;
      for (const int m : mantissas) {
        const double at = m * std::pow(10.0, e);
        if (at >= low * (1 - 1e-9) && at <= high * (1 + 1e-9)) ticks.push_back({at, tick_label(m, e)});
      }
    }
    return ticks;
  };
  auto ticks = with({1, 2, 5}, 1);
  for (int step = 1; ticks.size() > static_cast<size_t>(about) && step < 100; ++step) ticks = with({1}, step);
  return ticks;
}

std::vector<Tick> linear_ticks(double low, double high, int about) {
  const double raw = (high - low) / about;
  int exponent = static_cast<int>(std::floor(std::log10(raw)));
  int m = 1;
  while (m * std::pow(10.0, exponent) < raw) {
    m = m == 1 ? 2 : m == 2 ? 5 : 10;
    if (m == 10) m = 1, ++exponent;
  }
  const double step = m * std::pow(10.0, exponent);
  std::vector<Tick> ticks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k)
    ticks.push_back({k * step, fmt::format("{:.{}f}", k * step + 0.0, std::max(0, -exponent))});
  return ticks;
}

// Labels at the right end, moved apart: where each line's name goes.
std::vector<double> spread(std::vector<double> wanted, double low, double high, double gap) {
  std::vector<size_t> order(wanted.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return wanted[i]; });
  for (size_t i = 0; i < order.size(); ++i) {
    double& y = wanted[order[i]];
    y = std::max(y, i == 0 ? low : wanted[order[i - 1]] + gap);
  }
  for (size_t i = order.size(); i-- > 0;) {
    double& y = wanted[order[i]];
    y = std::min(y, i + 1 == order.size() ? high : wanted[order[i + 1]] - gap);
  }
  return wanted;
}

constexpr double kLetter = 6.9;      // mean width of one at the size of labels
constexpr size_t kLabelLength = 26;  // longer names are cut; the whole name is the title of the line

std::string end_labels(const std::vector<Series>& series, const Frame& frame) {
  std::vector<const Series*> labelled;
  std::vector<double> wanted;
  for (const auto& line : series) {
    if (!line.labelled) continue;
    for (auto point = line.points.rbegin(); point != line.points.rend(); ++point) {
      if (!shown(point->y, frame.y.log)) continue;
      labelled.push_back(&line);
      wanted.push_back(frame.y(point->y));
      break;
    }
  }
  const auto at = spread(wanted, frame.top + 4, std::max(frame.bottom, frame.top + 15.0 * wanted.size()), 15);
  std::string text;
  for (size_t i = 0; i < labelled.size(); ++i) {
    text += fmt::format(
        "<path class=\"leader {}\" d=\"M{} {}L{} {}h8\"/><text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\n",
        labelled[i]->style, coordinate(frame.right + 3), coordinate(wanted[i]), coordinate(frame.right + 14),
        coordinate(at[i]), coordinate(frame.right + 27), coordinate(at[i] + 4),
        escape(shortened(labelled[i]->name, kLabelLength)));
  }
  return text;
}

}  // namespace

std::vector<Tick> Scale::ticks(int about) const {
  return log ? log_ticks(low, high, about) : linear_ticks(low, high, about);
}

std::optional<Scale> scale_of(const std::vector<double>& values, bool log) {
  Scale scale{.low = INFINITY, .high = -INFINITY, .log = log};
  for (const double value : values) {
    if (!shown(value, log)) continue;
    scale.low = std::min(scale.low, value);
    scale.high = std::max(scale.high, value);
  }
  if (scale.low > scale.high) return std::nullopt;
  if (log) {  // a little air, and never less than a factor of two
    const double air = std::max(1.08, std::sqrt(2 * scale.low / scale.high));
    scale.low = std::max(scale.low / air, 1e-300);
    scale.high = std::min(scale.high * air, 1e300);
  } else if (scale.high - scale.low < 1e-9 * std::abs(scale.high) + 1e-300) {
    scale.low -= 0.5;
    scale.high += 0.5;
  }
  return scale;
}

std::string open(const Figure& figure) {
  return fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" aria-labelledby=\"{2}-t "
      "{2}-d\"><title id=\"{2}-t\">{3}</title><desc id=\"{2}-d\">{4}</desc>\n",
      coordinate(figure.width), coordinate(figure.height), figure.id, escape(figure.title),
      escape(figure.description));
}

std::string empty(const Figure& figure) {
  return fmt::format("<p class=\"none\">{}: no figures.</p>\n", escape(figure.title));
}

std::string Frame::draw(const Figure& figure) const {
  std::string text;
  const auto y_ticks =
      figure.y.ticks.empty() ? y.ticks(std::max(3, static_cast<int>((bottom - top) / 34))) : figure.y.ticks;
  for (const auto& tick : y_ticks) {
    const auto at = coordinate(y(tick.at));
    text += fmt::format(
        "<path class=\"grid\" d=\"M{} {}H{}\"/><text class=\"tick end\" x=\"{}\" y=\"{}\">{}</text>\n",
        coordinate(left), at, coordinate(right), coordinate(left - 8), coordinate(y(tick.at) + 4),
        escape(tick.label));
  }
  const auto x_ticks =
      figure.x.ticks.empty() ? x.ticks(std::max(3, static_cast<int>((right - left) / 70))) : figure.x.ticks;
  for (const auto& tick : x_ticks) {
    text += fmt::format(
        "<path class=\"axis\" d=\"M{} {}v5\"/><text class=\"tick mid\" x=\"{}\" y=\"{}\">{}</text>\n",
        coordinate(x(tick.at)), coordinate(bottom), coordinate(x(tick.at)), coordinate(bottom + 19),
        escape(tick.label));
  }
  text += fmt::format("<path class=\"axis\" d=\"M{} {}H{}\"/>", coordinate(left), coordinate(bottom),
                      coordinate(right));
  text += fmt::format("<text class=\"label\" x=\"0\" y=\"13\">{}</text>", escape(figure.y.label));
  text += fmt::format("<text class=\"label mid\" x=\"{}\" y=\"{}\">{}</text>\n",
                      coordinate((left + right) / 2), coordinate(bottom + 38), escape(figure.x.label));
  return text;
}

std::string path(const Series& series, const Frame& frame) {
  std::string d, dots;
  bool down = false;
  for (size_t i = 0; i < series.points.size(); ++i) {
    const auto& point = series.points[i];
    const bool here = shown(point.x, frame.x.log) && shown(point.y, frame.y.log);
    if (here) {
      const auto x = coordinate(frame.x(point.x)), y = coordinate(frame.y(point.y));
      d += (down ? "L" : "M") + x + " " + y;
      const bool alone =
          !down && (i + 1 == series.points.size() || !shown(series.points[i + 1].y, frame.y.log));
      if (series.dots || alone) dots += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"2.6\"/>";
    }
    down = here;
  }
  if (d.empty()) return "";
  const auto title = series.name.empty() ? "" : "<title>" + escape(series.name) + "</title>";
  return fmt::format("<g class=\"line {}\">{}<path d=\"{}\"/>{}</g>\n", series.style, title, d, dots);
}

std::string lines(const Figure& figure, const std::vector<Series>& series) {
  std::vector<double> xs, ys;
  size_t longest = 0, labels = 0;
  for (const auto& line : series) {
    for (const auto& point : line.points) {
      if (!shown(point.y, figure.y.log)) continue;
      xs.push_back(point.x);
      ys.push_back(point.y);
    }
    if (!line.labelled) continue;
    longest = std::max(longest, std::min(kLabelLength, line.name.size()));
    ++labels;
  }
  const auto x = scale_of(xs, figure.x.log), y = scale_of(ys, figure.y.log);
  if (!x || !y) return empty(figure);
  Figure grown = figure;
  grown.height = std::max(figure.height, 15.0 * static_cast<double>(labels) + 75);
  Frame frame{.left = 56, .top = 28, .right = figure.width - 12, .bottom = grown.height - 46};
  if (labels > 0) frame.right -= 24 + kLetter * static_cast<double>(longest);
  frame.x = *x;
  frame.x.from = frame.left + 8;
  frame.x.to = frame.right - 4;
  frame.y = *y;
  frame.y.from = frame.bottom;
  frame.y.to = frame.top;
  std::string text = open(grown) + frame.draw(grown);
  for (const auto& line : series) text += path(line, frame);
  return text + end_labels(series, frame) + "</svg>\n";
}

}  // namespace oscar::charts
