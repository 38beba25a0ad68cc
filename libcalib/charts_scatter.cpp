// A scatter plot whose marks all have their names beside them: a local search over places around each mark.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "formats/error.h"
#include "libcalib/charts.h"

namespace oscar::charts {
namespace {

struct Box {
  double left, top, right, bottom;
};
double overlap(const Box& a, const Box& b) {
  const double w = std::min(a.right, b.right) - std::max(a.left, b.left);
  const double h = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  return w > 0 && h > 0 ? w * h : 0;
}

struct Segment {
  Point a, b;
};
bool cross(const Segment& s, const Segment& t) {
  const auto side = [](const Point& a, const Point& b, const Point& c) {
    return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
  };
  return side(s.a, s.b, t.a) * side(s.a, s.b, t.b) < 0 && side(t.a, t.b, s.a) * side(t.a, t.b, s.b) < 0;
}
bool cross(const Segment& s, const Box& box) {  // which part of the segment, 0..1, lies in both slabs
  double from = 0, to = 1;
  const auto slab = [&](double start, double step, double low, double high) {
    if (step == 0) return start > low && start < high;
    const double one = (low - start) / step, other = (high - start) / step;
    from = std::max(from, std::min(one, other));
    to = std::min(to, std::max(one, other));
    return from < to;
  };
  return slab(s.a.x, s.b.x - s.a.x, box.left, box.right) && slab(s.a.y, s.b.y - s.a.y, box.top, box.bottom);
}

constexpr double kLetter = 7, kHalf = 7.5, kMark = 5;
constexpr size_t kLongest = 34;

struct Place {
  Box box{};
  Segment leader{};  // from the mark to the label
  double distance = 0, dislike = 0;
  bool far() const { return distance > 13; }
};

std::vector<Place> places(const Point& mark, double width, const Frame& frame) {
  std::vector<Place> found;
  for (const double distance : {9., 13., 20., 30., 42., 56., 72., 90., 110., 132.}) {
    for (int step = 0; step < 16; ++step) {
      const double angle = 2 * std::numbers::pi * step / 16;
      const double x = mark.x + distance * std::cos(angle), y = mark.y + distance * std::sin(angle);
      const bool above = step == 4 || step == 12;
      const double left = above ? x - width / 2 : std::cos(angle) > 0 ? x : x - width;
      Place place;
      place.box = {left, y - kHalf, left + width, y + kHalf};
      place.leader = {mark, {above ? x : std::cos(angle) > 0 ? left - 1 : left + width + 1, y}};
      place.distance = distance;
      place.dislike = distance + 5 * std::abs(std::sin(angle)) + (std::cos(angle) < 0 ? 3 : 0);
      const bool inside = left > frame.left && left + width < frame.right && y - kHalf > frame.top - 4 &&
                          y + kHalf < frame.bottom;
      if (inside) found.push_back(place);
    }
  }
  if (found.empty()) {  // wider than the frame: from its left edge
    Place place;
    place.box = {frame.left + 2, mark.y - kHalf, frame.left + 2 + width, mark.y + kHalf};
    place.leader = {mark, mark};
    found.push_back(place);
  }
  return found;
}

// Marks and `lines` are where names had better not be.
std::vector<Place> choose(const std::vector<Point>& marks, const std::vector<double>& widths,
                          const std::vector<Segment>& lines, const Frame& frame) {
  const size_t n = marks.size();
  std::vector<std::vector<Place>> candidates;
  for (size_t i = 0; i < n; ++i) candidates.push_back(places(marks[i], widths[i], frame));
  std::vector<Place> chosen(n);
  std::vector<bool> placed(n, false);
  const auto cost = [&](size_t i, const Place& place) {
    double sum = place.dislike;
    for (const auto& line : lines) sum += cross(line, place.box) ? 25 : 0;
    for (size_t j = 0; j < n; ++j) {
      const Box mark{marks[j].x - kMark, marks[j].y - kMark, marks[j].x + kMark, marks[j].y + kMark};
      if (j != i) {
        sum += 4 * overlap(place.box, mark);
        if (place.far() && cross(place.leader, mark)) sum += 40;
      }
      if (j == i || !placed[j]) continue;
      sum += 4 * overlap(place.box, chosen[j].box);
      if (place.far() && cross(place.leader, chosen[j].box)) sum += 60;
      if (chosen[j].far() && cross(chosen[j].leader, place.box)) sum += 60;
      if (place.far() && chosen[j].far() && cross(place.leader, chosen[j].leader)) sum += 60;
    }
    return sum;
  };
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return marks[i].y; });
  for (int sweep = 0; sweep < 6; ++sweep) {
    for (const size_t i : order) {
      double best = INFINITY;
      Place take;
      for (const auto& place : candidates[i]) {
        const double c = cost(i, place);
        if (c >= best) continue;
        best = c;
        take = place;
      }
      chosen[i] = take;
      placed[i] = true;
    }
  }
  return chosen;
}

}  // namespace

std::string scatter(const Figure& figure, const std::vector<Mark>& marks, const std::vector<Series>& guides) {
  std::vector<Mark> visible;
  std::vector<double> xs, ys;
  for (const auto& mark : marks) {
    if (!shown(mark.at.x, figure.x.log) || !shown(mark.at.y, figure.y.log)) continue;
    visible.push_back(mark);
    xs.push_back(mark.at.x);
    ys.push_back(mark.at.y);
  }
  if (visible.empty()) return empty(figure);
  Frame frame{.left = 56, .top = 28, .right = figure.width - 12, .bottom = figure.height - 46};
  frame.x = *scale_of(xs, figure.x.log);
  frame.y = *scale_of(ys, figure.y.log);
  const double room = std::min(190.0, figure.width / 5);  // for names to the right of the last column
  frame.x.from = frame.left + room / 2;
  frame.x.to = frame.right - room;
  frame.y.from = frame.bottom - 14;
  frame.y.to = frame.top + 8;

  std::vector<Point> at;
  std::vector<double> widths;
  for (const auto& mark : visible) {
    at.push_back({frame.x(mark.at.x), frame.y(mark.at.y)});
    size_t letters = 0;
    for (const char c : shortened(mark.name, kLongest))
      letters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    widths.push_back(kLetter * static_cast<double>(letters));
  }
  std::vector<Segment> behind;
  for (const auto& guide : guides) {
    for (size_t i = 1; i < guide.points.size(); ++i) {
      const auto &a = guide.points[i - 1], &b = guide.points[i];
      if (!shown(a.y, figure.y.log) || !shown(b.y, figure.y.log)) continue;
      behind.push_back({{frame.x(a.x), frame.y(a.y)}, {frame.x(b.x), frame.y(b.y)}});
    }
  }
  const auto chosen = choose(at, widths, behind, frame);

  std::string text = open(figure) + frame.draw(figure);
  text += fmt::format(
      "<clipPath id=\"{}-c\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath><g "
      "clip-path=\"url(#{}-c)\">",
      figure.id, coordinate(frame.left), coordinate(frame.top), coordinate(frame.right - frame.left),
      coordinate(frame.bottom - frame.top), figure.id);
  for (const auto& guide : guides) text += path(guide, frame);
  text += "</g>\n";
  for (size_t i = 0; i < visible.size(); ++i) {
    if (!chosen[i].far()) continue;
    const auto& leader = chosen[i].leader;
    text += fmt::format("<path class=\"pointer\" d=\"M{} {}L{} {}\"/>", coordinate(leader.a.x),
                        coordinate(leader.a.y), coordinate(leader.b.x), coordinate(leader.b.y));
  }
  for (size_t i = 0; i < visible.size(); ++i) {
    text += fmt::format(
        "<g class=\"mark {}\"><title>{}</title><circle cx=\"{}\" cy=\"{}\" r=\"4.2\"/><text class=\"name\" "
        "x=\"{}\" y=\"{}\">{}</text></g>\n",
        visible[i].style, escape(visible[i].name), coordinate(at[i].x), coordinate(at[i].y),
        coordinate(chosen[i].box.left), coordinate(chosen[i].box.top + kHalf + 4),
        escape(shortened(visible[i].name, kLongest)));
  }
  return text + "</svg>\n";
}

}  // namespace oscar::charts
