// Charts as SVG text: no scripts, no colours of their own. A style is a class of libcalib/report_style.h,
// which says what it looks like in light, in dark and on paper. The same input gives the same bytes.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::charts {

// For HTML text and attributes: & < > " ' escaped, control characters replaced by a space.
std::string escape(std::string_view text);
// At most `length` characters of UTF-8, the last one an ellipsis where some were cut.
std::string shortened(std::string_view text, size_t length);
std::string coordinate(double value);  // one decimal at most

struct Tick {
  double at = 0;
  std::string label;
};
// From a value to a coordinate.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;  // low < high, both > 0 when log
  bool log = false;
  double operator()(double value) const;
  std::vector<Tick> ticks(int about) const;  // inside [low, high], at 1, 2 or 5 times a power of ten
};
// Finite, and positive on a log scale.
bool shown(double value, bool log);

struct Axis {
  std::string label;
  bool log = false;
  std::vector<Tick> ticks{};  // empty: nice ones
};
struct Figure {
  std::string id;                  // unique on the page, of [a-z0-9-]
  std::string title, description;  // for those who do not see it
  double width = 1040, height = 320;
  Axis x{}, y{};
};
struct Point {
  double x = 0, y = 0;
};
struct Series {
  std::string name, style;
  std::vector<Point> points{};  // ascending x; one that cannot be shown interrupts the line
  bool labelled = false;        // its name at the right end
  bool dots = false;
};
struct Mark {
  std::string name, style;
  Point at{};
};
// Values by row and column of one map; NaN is an empty cell.
struct HeatStrip {
  std::string name;
  std::vector<std::vector<double>> rows;
};

// What there is nothing to show of is a paragraph that says so, in all of these.
std::string lines(const Figure& figure, const std::vector<Series>& series);
// Every mark has its name beside it, or at the end of a thin line where it is crowded; `guides` lie behind,
// are cut at the frame and do not widen it.
std::string scatter(const Figure& figure, const std::vector<Mark>& marks, const std::vector<Series>& guides);
// One scale of nine steps, logarithmic, for all strips. Columns are named under the last one, rows from 0.
std::string heat_map(const Figure& figure, const std::vector<std::string>& columns,
                     const std::vector<HeatStrip>& strips);
// A panel of the figure's size for every series, all others grey behind it; `values` (as many) stand beside
// the names.
std::string multiples(const Figure& figure, const std::vector<Series>& series,
                      const std::vector<std::string>& values);

// Parts of the above. A frame is the plot's rectangle with its scales; draw() makes grid, ticks and axis
// names.
struct Frame {
  double left = 0, top = 0, right = 0, bottom = 0;
  Scale x{}, y{};
  std::string draw(const Figure& figure) const;
};
std::string open(const Figure& figure);  // <svg …> with title and description
std::string empty(const Figure& figure);
std::string path(const Series& series, const Frame& frame);
// Smallest and largest that can be shown; equal ones are moved apart.
std::optional<Scale> scale_of(const std::vector<double>& values, bool log);

}  // namespace oscar::charts
