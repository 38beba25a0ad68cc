#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "formats/error.h"
#include "libcalib/artifacts/nova_bundle.h"
#include "libcalib/artifacts/pt_fields.h"

namespace oscar {
namespace {

using pt_fields::Fields;

constexpr int kSize = 4;                // channels of a group, which the engine's kernel is made for
constexpr double kInverseLimit = 1e-2;  // of max |forward inverse - I|: beyond it keys are not what they were

// The bounds must cut d channels into groups of 4, in order; their bits, which may be None, are not looked
// at.
void check_bounds(const Fields& file, int64_t d) {
  const auto& bounds = pt_fields::items_of(file.need("bounds"), file.where("bounds"));
  bool good = static_cast<int64_t>(bounds.size()) * kSize == d;
  for (size_t i = 0; i < bounds.size() && good; ++i) {
    const std::string where = fmt::format("{}: bounds[{}]", file.where(), i);
    const auto& bound = pt_fields::items_of(bounds[i], where);
    const auto first = static_cast<int64_t>(i) * kSize;
    good = bound.size() >= 2 && bound[0].integer(where) == first && bound[1].integer(where) == first + kSize;
  }
  if (!good)
    throw failure("{}: bounds: expected {} channels in consecutive groups of {}", file.where(), d, kSize);
}

// {(layer, head): groups}
std::map<std::pair<int64_t, int64_t>, const PtValue*> books_of(const Fields& file) {
  const std::string where = file.where("codebooks");
  std::map<std::pair<int64_t, int64_t>, const PtValue*> books;
  for (const auto& [key, groups] : file.need("codebooks").dict(where).items) {
    const auto* pair = std::get_if<PtTuple>(&key.value);
    if (!pair || pair->items.size() != 2)
      throw failure("{}: expected keys (layer, head), found a {}", where, key.kind());
    books[{pair->items[0].integer(where), pair->items[1].integer(where)}] = &groups;
  }
  return books;
}

int64_t centroids_of(const std::vector<PtValue>& groups, const std::string& where) {
  const Tensor& first = pt_fields::need_floats(groups.at(0).tensor(where), {-1, kSize}, where);
  const int64_t count = first.shape[0];
  if (count < 1 || count > 256 || !std::has_single_bit(static_cast<uint64_t>(count)))
    throw failure("{}: expected a power of two of at most 256 codewords, found {}", where, count);
  return count;
}

std::shared_ptr<const Codebook> codebook_of(const PtValue& value, int64_t centroids, int64_t d, bool norm,
                                            const std::string& where) {
  const auto& groups = pt_fields::items_of(value, where);
  if (static_cast<int64_t>(groups.size()) * kSize != d)
    throw failure("{}: expected {} groups, found {}", where, d / kSize, groups.size());
  Codebook codebook{.groups = {}, .norm = norm};
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string at = fmt::format("{}[{}]", where, g);
    CodeGroup& group = codebook.groups.emplace_back();
    group.size = kSize;
    group.bits = std::countr_zero(static_cast<uint64_t>(centroids));
    for (const double word : pt_fields::need_finite(groups[g].tensor(at), {centroids, kSize}, at)) {
      group.words.push_back(f16_to_float(float_to_f16(static_cast<float>(word))));
      if (!std::isfinite(group.words.back()))
        throw failure("{}: {} is beyond the fp16 that the engine loads", at, word);
    }
  }
  return std::make_shared<const Codebook>(std::move(codebook));
}

std::vector<int> ids_of(const std::vector<int>& given, int64_t layers, const std::string& where) {
  std::vector<int> ids = given;
  for (int id = 0; given.empty() && id < layers; ++id) ids.push_back(id);
  if (static_cast<int64_t>(ids.size()) != layers)
    throw invalid("{}: {} global layer ids for {} layers", where, ids.size(), layers);
  if (!std::ranges::is_sorted(ids, std::less_equal<>()) || ids[0] < 0)
    throw invalid("{}: the global layer ids must ascend: {}", where, fmt::join(ids, ", "));
  return ids;
}

}  // namespace

SideCodes read_nova_bundle(const std::filesystem::path& path, const std::vector<int>& global) {
  const std::string name = path.string();
  const PtValue root = read_pt(path);
  const Fields file(root, name);
  const auto forward = file.finite("forward", {-1, -1, -1, -1});
  const Shape shape = file.floats("forward", {-1, -1, -1, -1}).shape;
  const int64_t layers = shape[0], heads = shape[1], d = shape[2];
  if (shape[3] != d || forward.empty() || d % kSize != 0)
    throw failure("{}: forward: expected [layers, heads, d, d] and groups of {} channels, found {}", name,
                  kSize, to_string(shape));
  const auto inverse = file.finite("inverse", shape), mean = file.finite("mean", {layers, heads, d});
  const bool norm = file.flag("pertoken_norm", false);
  check_bounds(file, d);
  const auto books = books_of(file);
  const auto book = [&](int64_t layer, int64_t head) -> const PtValue& {
    const auto found = books.find({layer, head});
    if (found == books.end()) throw failure("{}: codebooks: ({}, {}) is missing", name, layer, head);
    return *found->second;
  };
  const std::string first = name + ": codebooks[(0, 0)]";
  const int64_t centroids = centroids_of(pt_fields::items_of(book(0, 0), first), first);

  SideCodes codes{Side::K, "nova", {}};
  const auto ids = ids_of(global, layers, name);
  for (int64_t l = 0; l < layers; ++l) {
    for (int64_t h = 0; h < heads; ++h) {
      HeadCode& head = codes.layers[ids[static_cast<size_t>(l)]].emplace_back();
      const int64_t at = l * heads + h;
      head.transform.forward = ConstMatrixMap(forward.data() + at * d * d, d, d);
      head.transform.inverse = ConstMatrixMap(inverse.data() + at * d * d, d, d);
      head.transform.mean = ConstVectorMap(mean.data() + at * d, d);
      const Matrix product = head.transform.forward * head.transform.inverse;
      if (const double error = (product - Matrix::Identity(d, d)).cwiseAbs().maxCoeff();
          !(error <= kInverseLimit))
        throw failure("{}: layer {}, head {}: forward times inverse is off the identity by {:.2e}", name, l,
                      h, error);
      head.codec = &find_codec("vector");
      head.options.codebook =
          codebook_of(book(l, h), centroids, d, norm, fmt::format("{}: codebooks[({}, {})]", name, l, h));
    }
  }
  return codes;
}

}  // namespace oscar
