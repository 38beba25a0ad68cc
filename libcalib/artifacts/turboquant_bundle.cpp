#include "libcalib/artifacts/turboquant_bundle.h"

#include <algorithm>
#include <functional>

#include "formats/error.h"
#include "libcalib/artifacts/pt_fields.h"

namespace oscar {
namespace {

using pt_fields::Fields;

RotationSet rotations(const Fields& file, Side side, const TurboQuantBundle& bundle) {
  const std::string name = fmt::format("{}_rotation", side_name(side));
  const auto values = file.finite(name.c_str(), {-1, -1, -1});
  const Shape& shape = file.need(name.c_str()).tensor(name).shape;
  const int64_t d = shape[2];
  if (shape[0] < 1 || d < 1 || shape[1] != d)
    throw failure("{}: {}: expected [layers, d, d], found {}", file.where(), name, to_string(shape));
  RotationSet set;
  set.side = side;
  set.objective = bundle.codec;
  for (int64_t l = 0; l < shape[0]; ++l) {
    const Matrix stored = ConstMatrixMap(values.data() + l * d * d, d, d);
    set.layers[static_cast<int>(l)].rotation = {bundle.codec == "turboquant" ? Matrix(stored.transpose())
                                                                             : stored};
  }
  check(set, file.where(name.c_str()));
  if (file.find("n_layers")) file.integer("n_layers", shape[0], shape[0]);
  if (file.find("head_dim")) file.integer("head_dim", d, d);
  return set;
}

std::vector<double> centroids(const Fields& file, const char* name, int bits) {
  const auto levels = file.finite(name, {int64_t{1} << bits});
  if (!std::ranges::is_sorted(levels, std::less_equal<>()))
    throw failure("{}: {}: the levels must ascend", file.where(), name);
  return levels;
}

}  // namespace

TurboQuantBundle read_turboquant_bundle(const std::filesystem::path& path) {
  const PtValue root = read_pt(path);
  const Fields file(root, path.string());
  TurboQuantBundle bundle;
  if (file.find("codec")) bundle.codec = file.text("codec");
  const bool affine = bundle.codec == "oscar_affine";
  if (!affine && bundle.codec != "turboquant")
    throw failure("{}: codec: expected turboquant or oscar_affine, found '{}'", path.string(), bundle.codec);
  bundle.k = rotations(file, Side::K, bundle);
  bundle.v = rotations(file, Side::V, bundle);
  if (bundle.k.layers.size() != bundle.v.layers.size())
    throw failure("{}: {} layers of K and {} of V", path.string(), bundle.k.layers.size(),
                  bundle.v.layers.size());
  bundle.k_bits = static_cast<int>(file.integer("k_bits", 1, 8));
  bundle.v_bits = static_cast<int>(file.integer("v_bits", 1, 8));
  if (affine) {
    bundle.k_clip = file.number("k_clip").value_or(1);
    bundle.v_clip = file.number("v_clip").value_or(1);
    if (file.find("groups")) bundle.groups = static_cast<int>(file.integer("groups", 1, 1 << 16));
  } else {
    bundle.k_centroids = centroids(file, "k_centroids", bundle.k_bits);
    bundle.v_centroids = centroids(file, "v_centroids", bundle.v_bits);
  }
  if (file.find("seed")) bundle.seed = file.need("seed").integer(file.where("seed"));
  if (file.find("note")) bundle.note = file.text("note");
  return bundle;
}

}  // namespace oscar
