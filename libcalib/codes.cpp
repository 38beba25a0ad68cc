#include "libcalib/codes.h"

#include <algorithm>

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

std::string shape_name(const Codebook& codebook) {
  std::vector<std::string> shapes;
  for (const auto& group : codebook.groups) shapes.push_back(fmt::format("{}x{}", group.size, group.bits));
  return joined(shapes) + (codebook.norm ? "-norm" : "");
}

std::string codec_names(const SideCodes& codes) {
  std::vector<std::string> names;
  for (const auto& [id, heads] : codes.layers) {
    for (const auto& head : heads) {
      names.push_back(head.options.codebook ? shape_name(*head.options.codebook)
                                            : std::string(head.codec->name));
    }
  }
  return joined(names);
}

}  // namespace oscar
