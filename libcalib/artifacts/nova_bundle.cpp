#include "libcalib/artifacts/nova_bundle.h"

#include <algorithm>

#include "formats/dtype.h"
#include "formats/error.h"
#include "formats/pt.h"

namespace oscar {
namespace {

constexpr int kSize = 4, kBits = 8;

// Not an initialiser list: GCC 12 then warns of an uninitialised variant, wrongly.
template <typename T>
PtValue pt(T content) {
  PtValue value;
  value.value = std::move(content);
  return value;
}

PtTuple tuple(std::initializer_list<int64_t> numbers) {
  PtTuple result;
  for (const int64_t number : numbers) result.items.push_back(pt(number));
  return result;
}

template <typename T>
PtValue tensor(DType dtype, Shape shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return pt(make_tensor(dtype, std::move(shape), std::vector<std::byte>(bytes.begin(), bytes.end())));
}

}  // namespace

bool is_nova_bundle(const SideCodes& codes) {
  return codes.side == Side::K && std::ranges::all_of(codes.layers, [](const auto& layer) {
           return std::ranges::all_of(layer.second, [](const HeadCode& head) {
             const auto& [forward, inverse, mean] = head.transform;
             return head.codec->name == "vector" && head.options.codebook->norm && forward.size() &&
                    inverse.size() && mean.size() &&
                    std::ranges::all_of(head.options.codebook->groups, [](const CodeGroup& group) {
                      return group.size == kSize && group.bits == kBits;
                    });
           });
         });
}

void write_nova_bundle(const std::filesystem::path& path, const SideCodes& codes) {
  if (!is_nova_bundle(codes))
    throw invalid("{}: the keys '{}' are not of the shape that this bundle holds: 4x8 with norm",
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
  file.set("grouping", pt(std::string("stratified")));
  file.set("allocation", pt(std::string("flat")));
  file.set("whiten", pt(false));
  file.set("ecvq_lambda", pt(0.0));
  file.set("pertoken_norm", pt(true));
  file.set("bits_per_coord", pt(static_cast<double>(kBits) / kSize));
  file.set("fp8_fmt", pt(std::string("none")));
  write_pt(path, pt(std::move(file)), "codebook");
}

}  // namespace oscar
