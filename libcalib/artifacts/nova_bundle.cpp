#include "libcalib/artifacts/nova_bundle.h"

#include <algorithm>

#include "formats/dtype.h"
#include "formats/error.h"
#include "libcalib/artifacts/pt_fields.h"

namespace oscar {
namespace {

using pt_fields::pt;
using pt_fields::tensor;
using pt_fields::tuple;

constexpr int kSize = 4, kBits = 8;

// Per head a transform with inverse and mean, and groups of 4 channels and 8 bits, all with norm or all
// without.
bool has_structure(const SideCodes& codes, bool norm) {
  return codes.side == Side::K && !codes.layers.empty() &&
         std::ranges::all_of(codes.layers, [norm](const auto& layer) {
           return std::ranges::all_of(layer.second, [norm](const HeadCode& head) {
             const auto& [forward, inverse, mean] = head.transform;
             return head.codec->name == "vector" && head.options.codebook->norm == norm && forward.size() &&
                    inverse.size() && mean.size() &&
                    std::ranges::all_of(head.options.codebook->groups, [](const CodeGroup& group) {
                      return group.size == kSize && group.bits == kBits;
                    });
           });
         });
}

}  // namespace

// All layers with the heads and the head dim of the first: the bundle has one array of maps.
static bool one_geometry(const SideCodes& codes) {
  const auto& first = codes.layers.begin()->second;
  return std::ranges::all_of(codes.layers, [&](const auto& entry) {
    return entry.second.size() == first.size() &&
           std::ranges::all_of(entry.second, [&](const HeadCode& head) {
             return head.transform.forward.rows() == first[0].transform.forward.rows();
           });
  });
}

bool is_nova_bundle(const SideCodes& codes) {
  return has_structure(codes, true) && one_geometry(codes);
}

void write_nova_bundle(const std::filesystem::path& path, const SideCodes& codes) {
  const bool norm = has_structure(codes, true);
  if (!norm && !has_structure(codes, false))
    throw invalid("{}: the keys '{}' are not of the shape that this bundle holds: 4x8 with a map and a mean",
                  path.string(), codes.objective);
  const auto layers = static_cast<int64_t>(codes.layers.size());
  const auto heads = static_cast<int64_t>(codes.layers.begin()->second.size());
  const int64_t d = codes.layers.begin()->second[0].transform.forward.rows();
  std::vector<double> forward, inverse;
  std::vector<float> mean;
  PtDict books;
  int64_t local = 0;
  for (const auto& [id, layer] : codes.layers) {
    for (size_t h = 0; h < layer.size(); ++h) {
      const Transform& t = layer[h].transform;
      if (static_cast<int64_t>(layer.size()) != heads || t.forward.rows() != d)
        throw invalid("{}: layer {}: the bundle holds layers of one geometry", path.string(), id);
      forward.insert(forward.end(), t.forward.data(), t.forward.data() + d * d);
      inverse.insert(inverse.end(), t.inverse.data(), t.inverse.data() + d * d);
      for (const double x : t.mean) mean.push_back(static_cast<float>(x));
      PtList groups;
      for (const auto& group : layer[h].options.codebook->groups) {
        std::vector<uint16_t> words;
        for (const float word : group.words) words.push_back(float_to_f16(word));
        groups.items.push_back(tensor(DType::F16, {1 << kBits, kSize}, words));
      }
      books.items.emplace_back(pt(tuple({local, static_cast<int64_t>(h)})), pt(std::move(groups)));
    }
    ++local;
  }
  PtList bounds;
  for (int64_t first = 0; first < d; first += kSize)
    bounds.items.push_back(pt(tuple({first, first + kSize, kBits})));
  PtDict file;
  file.set("forward", tensor(DType::F64, {layers, heads, d, d}, forward));
  file.set("inverse", tensor(DType::F64, {layers, heads, d, d}, inverse));
  file.set("mean", tensor(DType::F32, {layers, heads, d}, mean));
  file.set("codebooks", pt(std::move(books)));
  file.set("bounds", pt(std::move(bounds)));
  file.set("grouping", pt("stratified"));
  file.set("allocation", pt("flat"));
  file.set("whiten", pt(false));
  file.set("ecvq_lambda", pt(0.0));
  file.set("pertoken_norm", pt(norm));
  file.set("bits_per_coord", pt(static_cast<double>(kBits) / kSize));
  file.set("G", pt(int64_t{kSize}));
  write_pt(path, pt(std::move(file)), "codebook");
}

}  // namespace oscar
