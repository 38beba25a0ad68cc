#include "libcalib/codes.h"

#include <algorithm>
#include <set>

#include "formats/error.h"

namespace oscar {

int Codebook::dim() const {
  int sum = 0;
  for (const auto& group : groups) sum += group.size;
  return sum;
}

int64_t Codebook::payload_bits() const {
  int64_t sum = 0;
  for (const auto& group : groups) sum += group.bits;
  return sum;
}

static std::string joined(const std::vector<std::string>& names) {
  std::vector<std::string> distinct;
  for (const auto& name : names) {
    if (std::ranges::find(distinct, name) == distinct.end()) distinct.push_back(name);
  }
  return fmt::format("{}", fmt::join(distinct, "+"));
}

namespace {

// Widths of a code by its channels: "4x8", "4x(6,10)", "1x(0-4)".
using Widths = std::map<int, std::set<int>>;
void collect(const Codebook& codebook, Widths& widths) {
  for (const auto& group : codebook.groups) widths[group.size].insert(group.bits);
}
std::vector<std::string> names(const Widths& widths) {
  std::vector<std::string> shapes;
  for (const auto& [size, bits] : widths) {
    if (bits.size() == 1) {
      shapes.push_back(fmt::format("{}x{}", size, *bits.begin()));
    } else if (*bits.rbegin() - *bits.begin() + 1 == static_cast<int>(bits.size()) && bits.size() > 2) {
      shapes.push_back(fmt::format("{}x({}-{})", size, *bits.begin(), *bits.rbegin()));
    } else {
      shapes.push_back(fmt::format("{}x({})", size, fmt::join(bits, ",")));
    }
  }
  return shapes;
}

}  // namespace

std::string shape_name(const Codebook& codebook) {
  Widths widths;
  collect(codebook, widths);
  return joined(names(widths)) + (codebook.norm ? "-norm" : "");
}

std::string codec_names(const SideCodes& codes) {
  std::vector<std::string> all;
  Widths widths;
  bool norm = false;
  for (const auto& [id, heads] : codes.layers) {
    for (const auto& head : heads) {
      if (head.options.codebook) {
        collect(*head.options.codebook, widths);
        norm = norm || head.options.codebook->norm;
      }
      if (head.codec->name != "vector") all.push_back(std::string(head.codec->name));
    }
  }
  if (!widths.empty()) all.push_back(joined(names(widths)) + (norm ? "-norm" : ""));
  return joined(all);
}

}  // namespace oscar
