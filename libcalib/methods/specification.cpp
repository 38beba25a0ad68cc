// Method specifications: text to options and back.
#include <algorithm>
#include <charconv>
#include <sstream>

#include "libcalib/composition.h"
#include "libcalib/methods/method.h"
#include "libcalib/names.h"
#include "libcalib/targets.h"

namespace oscar {
namespace {

template <typename T>
concept Named = std::is_enum_v<T> || std::same_as<T, bool>;

// Values by name.
template <Named T>
struct Names {
  std::vector<std::pair<std::string_view, T>> rows;
};
template <Named T>
const Names<T>& names();
template <>
const Names<Granularity>& names() {
  static const Names<Granularity> table{{{"layer", Granularity::Layer}, {"head", Granularity::Head}}};
  return table;
}
template <>
const Names<Centre>& names() {
  static const Names<Centre> table{
      {{"none", Centre::None}, {"mean", Centre::Mean}, {"weighted", Centre::Weighted}, {"top", Centre::Top}}};
  return table;
}
template <>
const Names<Importance>& names() {
  static const Names<Importance> table{
      {{"none", Importance::None}, {"attention", Importance::Attention}, {"output", Importance::Output}}};
  return table;
}
template <>
const Names<Partition>& names() {
  static const Names<Partition> table{{{"snake", Partition::Snake},
                                       {"volume", Partition::Volume},
                                       {"contiguous", Partition::Contiguous},
                                       {"anti", Partition::Anti}}};
  return table;
}
template <>
const Names<Stored>& names() {
  static const Names<Stored> table{
      {{"int8", Stored::Int8}, {"fp16", Stored::Fp16}, {"e4m3", Stored::E4M3}, {"e5m2", Stored::E5M2}}};
  return table;
}
template <>
const Names<bool>& names() {
  static const Names<bool> table{{{"0", false}, {"1", true}}};
  return table;
}

std::invalid_argument bad(std::string_view option, std::string_view expected, std::string_view found) {
  return invalid("method option {}: expected {}, found '{}'", option, expected, found);
}

template <Named T>
void read(std::string_view option, std::string_view text, T& value) {
  std::string known;
  for (const auto& [name, row] : names<T>().rows) {
    if (name == text) {
      value = row;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  throw bad(option, known, text);
}
template <typename T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}
template <std::integral T>
requires(!std::same_as<T, bool>) void read(std::string_view option, std::string_view text, T& value) {
  const T least = option == "iterations" || option == "restarts" || option == "groups" ? 1 : 0;
  if (!parse(text, value) || value < least) throw bad(option, fmt::format("a number from {}", least), text);
}
void read(std::string_view option, std::string_view text, double& value) {
  const double most = option == "clip" ? 1 : 16;
  if (!parse(text, value) || !(value >= 0 && value <= most))
    throw bad(option, fmt::format("a number from 0 to {}", most), text);
}
void read(std::string_view option, std::string_view text, Shape2& shape) {
  const auto x = text.find('x');
  if (x == text.npos || !parse(text.substr(0, x), shape.size) || !parse(text.substr(x + 1), shape.bits) ||
      shape.size < 1 || shape.size > 64 || shape.bits < 1 || shape.bits > 12) {
    throw bad(option, "GxB, 1 to 64 channels and 1 to 12 bits, such as 4x8", text);
  }
}
void read(std::string_view option, std::string_view text, std::string& value) {
  if (option == "target" && !text.empty()) find_target(text);
  if (option == "composition") find_composition(text);
  if (option == "codec") find_codec(text);
  value = text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void read(std::string_view option, std::string_view text, std::vector<Shape2>& shapes) {
  shapes.clear();
  for (const auto& part : split(text, '+')) read(option, part, shapes.emplace_back());
}

template <Named T>
std::string text(const T& value) {
  for (const auto& [name, row] : names<T>().rows) {
    if (row == value) return std::string(name);
  }
  return {};
}
template <typename T>
requires(std::integral<T> && !std::same_as<T, bool>) || std::same_as<T, double> ||
    std::same_as<T, std::string> std::string text(const T& value) {
  return fmt::format("{}", value);
}
std::string text(const Shape2& shape) {
  return fmt::format("{}x{}", shape.size, shape.bits);
}

std::string text(const std::vector<Shape2>& shapes) {
  std::vector<std::string> parts;
  for (const Shape2& shape : shapes) parts.push_back(text(shape));
  return fmt::format("{}", fmt::join(parts, "+"));
}

void set(MethodOptions& options, std::string_view name, std::string_view value) {
#define OSCAR_METHOD_OPTION(option, field, meaning) \
  if (name == option) return read(name, value, options.field);
#include "libcalib/methods/options.def"
#undef OSCAR_METHOD_OPTION
  throw invalid("unknown method option '{}'; known: {}", name, known_names(option_table()));
}

bool honours(const AlgorithmInfo& algorithm, std::string_view option) {
  const auto honoured = split(algorithm.options, ' ');
  return std::ranges::find(honoured, option) != honoured.end();
}

void apply(MethodOptions& options, std::string_view assignments) {
  if (assignments.empty()) return;
  for (const auto& part : split(assignments, ':')) {
    const auto equals = part.find('=');
    set(options, std::string_view(part).substr(0, equals), std::string_view(part).substr(equals + 1));
  }
}

SideMethod side_of(const MethodInfo& method, Side side) {
  SideMethod result{&method, side == Side::K ? method.k : method.v, {}};
  apply(result.options, side == Side::K ? method.defaults_k : method.defaults_v);
  return result;
}

// Options of one half of a specification, for one side or for both.
void assign(const std::vector<std::string>& parts, const std::vector<SideMethod*>& sides) {
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto equals = parts[i].find('=');
    if (equals == std::string::npos)
      throw invalid("method '{}': expected option=value, found '{}'", parts[0], parts[i]);
    const std::string name = parts[i].substr(0, equals), value = parts[i].substr(equals + 1);
    for (size_t before = 1; before < i; ++before) {
      if (parts[before].starts_with(name + '='))
        throw invalid("method '{}': option {} is there twice, '{}' and '{}'", parts[0], name, parts[before],
                      parts[i]);
    }
    bool taken = false;
    for (SideMethod* side : sides) {
      if (!honours(*side->algorithm, name)) continue;
      set(side->options, name, value);
      taken = true;
    }
    if (taken) continue;
    MethodOptions scratch;
    set(scratch, name, value);  // an unknown name first
    std::string takes;
    for (const SideMethod* side : sides) {
      if (takes.find(side->algorithm->options) == takes.npos)
        takes += (takes.empty() ? "" : " ") + std::string(side->algorithm->options);
    }
    throw invalid("method '{}' takes no option '{}'; it takes: {}", parts[0], name, takes);
  }
}

// The options that a side has otherwise than its method, in table order.
using Assignments = std::vector<std::pair<std::string, std::string>>;
Assignments differing(const SideMethod& side, Side which) {
  const MethodOptions own = side_of(*side.method, which).options;
  Assignments result;
#define OSCAR_METHOD_OPTION(option, field, meaning) \
  if (!(side.options.field == own.field)) result.emplace_back(option, text(side.options.field));
#include "libcalib/methods/options.def"
#undef OSCAR_METHOD_OPTION
  return result;
}
std::string specification(const SideMethod& side, const Assignments& options) {
  std::string result(side.method->name);
  for (const auto& [option, value] : options) result += fmt::format(":{}={}", option, value);
  return result;
}

// One specification for both sides where there is one: an option that either has otherwise, and that means
// the same to every side that takes it. Else one for each.
std::string canonical(const SideMethod& k, const SideMethod& v) {
  const auto of_k = differing(k, Side::K), of_v = differing(v, Side::V);
  const auto apart = specification(k, of_k) + "/" + specification(v, of_v);
  if (k.method != v.method) return apart;
  const auto k_values = honoured_options(k), v_values = honoured_options(v);
  const auto value = [](const Assignments& values, std::string_view name) -> const std::string* {
    const auto found = std::ranges::find(values, name, &Assignments::value_type::first);
    return found == values.end() ? nullptr : &found->second;
  };
  Assignments both;
  for (const auto& info : option_table()) {
    if (!value(of_k, info.name) && !value(of_v, info.name)) continue;
    const std::string *one = value(k_values, info.name), *other = value(v_values, info.name);
    if (one && other && *one != *other) return apart;
    both.emplace_back(info.name, one ? *one : *other);
  }
  return specification(k, both);
}

// What a side needs of the statistics: its algorithm's, and scores where its options weight by them.
unsigned needs_of(const SideMethod& side) {
  const MethodOptions& o = side.options;
  const auto takes = [&](std::string_view option) { return honours(*side.algorithm, option); };
  const bool scores = (takes("target") && (o.target == "qqt-mass" || o.target == "qqt-out")) ||
                      (takes("centre") && importance_of(o.centre) != Importance::None) ||
                      (takes("importance") && o.importance != Importance::None);
  return side.algorithm->needs | (scores ? unsigned{kScores} : 0);
}

}  // namespace

unsigned Method::needs() const {
  return (needs_of(k) & ~static_cast<unsigned>(kMetric)) | needs_of(v);
}
bool Method::trains() const {
  return honours(*k.algorithm, "iterations") || honours(*v.algorithm, "iterations");
}

Method parse_method(std::string_view specification) {
  const auto halves = split(specification, '/');
  if (halves.size() > 2)
    throw invalid("method '{}': expected METHOD, or METHOD-OF-K/METHOD-OF-V", specification);
  Method method;
  const auto k_parts = split(halves.front(), ':'), v_parts = split(halves.back(), ':');
  method.k = side_of(find_method(k_parts[0]), Side::K);
  method.v = side_of(find_method(v_parts[0]), Side::V);
  if (halves.size() == 1) {
    assign(k_parts, {&method.k, &method.v});
  } else {
    assign(k_parts, {&method.k});
    assign(v_parts, {&method.v});
  }
  method.name = canonical(method.k, method.v);
  return method;
}

std::vector<std::pair<std::string, std::string>> honoured_options(const SideMethod& side) {
  std::vector<std::pair<std::string, std::string>> result;
#define OSCAR_METHOD_OPTION(option, field, meaning) \
  if (honours(*side.algorithm, option)) result.emplace_back(option, text(side.options.field));
#include "libcalib/methods/options.def"
#undef OSCAR_METHOD_OPTION
  return result;
}

std::string needs_text(unsigned needs) {
  std::vector<std::string_view> parts;
  if (needs & kSums) parts.push_back("second moments");
  if (needs & kScores) parts.push_back("score statistics");
  if (needs & kRows) parts.push_back("sampled rows");
  if (needs & kMetric) parts.push_back("W_O");
  return parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace oscar
