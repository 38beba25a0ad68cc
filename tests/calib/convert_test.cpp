#include "libcalib/artifacts/convert.h"

#include <Eigen/LU>
#include <Eigen/QR>

#include "formats/error.h"
#include "formats/npy.h"
#include "formats/pt.h"
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/artifacts/gguf_rotations.h"
#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/artifacts/rotation_versions.h"
#include "tests/formats/malformed.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

using test::TempDir;

constexpr int kDim = 32, kHeads = 2;

Matrix orthogonal(uint64_t seed) {
  const auto values = test::normal(kDim * kDim, seed);
  Matrix m(kDim, kDim);
  for (int i = 0; i < kDim * kDim; ++i) m.data()[i] = values[static_cast<size_t>(i)];
  Matrix q = Eigen::HouseholderQR<Matrix>(m).householderQ();
  return q.cast<float>().cast<double>();  // as a file holds it
}
RotationSet sample(Side side, bool per_head = false) {
  RotationSet set;
  set.side = side;
  set.objective = std::string(side == Side::K ? "qqt" : "sst") + "_r_h_pbr" + (per_head ? "_perhead" : "");
  set.composition = "r_h_pbr";
  set.per_head = per_head;
  for (int id = 0; id < 3; ++id) {
    for (int h = 0; h < (per_head ? kHeads : 1); ++h) {
      set.layers[id].rotation.push_back(
          orthogonal(static_cast<uint64_t>(10 * id + h) + (side == Side::V ? 100 : 0)));
      set.layers[id].eigenvalues.push_back(Vector::LinSpaced(kDim, 0.5, 16));
    }
  }
  return set;
}
void expect_same(const RotationSet& a, const RotationSet& b) {
  EXPECT_EQ(a.side, b.side);
  EXPECT_EQ(a.objective, b.objective);
  EXPECT_EQ(a.per_head, b.per_head);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (const auto& [id, layer] : a.layers) {
    const auto& other = b.layers.at(id);
    EXPECT_EQ(layer.rotation, other.rotation) << id;
    EXPECT_EQ(layer.eigenvalues, other.eigenvalues) << id;
    EXPECT_EQ(layer.means, other.means) << id;
    EXPECT_EQ(layer.inverse, other.inverse) << id;
  }
}
std::string version_in(const test::fs::path& path) {
  return fmt::to_string(read_pt(path).dict("file").find("format_version")->integer("version"));
}

TEST(Convert, BetweenPtAndSafetensorsNothingChanges) {
  for (const bool per_head : {false, true}) {
    TempDir folder;
    const auto set = sample(Side::K, per_head);
    write_rotations_pt(folder / "k.pt", set);
    convert({folder / "k.pt"}, folder / "k.safetensors", {});
    convert({folder / "k.safetensors"}, folder / "k2.pt", {});
    expect_same(read_rotations(folder / "k2.pt"), set);
    EXPECT_EQ(version_in(folder / "k2.pt"), per_head ? "2" : "1");
  }
}
// A model may mix head dims (40 layers of 256 and 8 of 512): no layer is dropped and none is given another's
// shape.
TEST(Convert, LayersOfOtherHeadDimsKeepThem) {
  TempDir folder;
  RotationSet set = sample(Side::K);
  set.layers[1].rotation = {Matrix::Identity(64, 64)};
  set.layers[1].eigenvalues = {Vector::LinSpaced(64, 0.5, 32)};
  write_rotations_pt(folder / "k.pt", set);
  convert({folder / "k.pt"}, folder / "k.safetensors", {});
  expect_same(read_rotations(folder / "k.safetensors"), set);
}
TEST(Convert, VersionsWhereTheMeaningAllows) {
  TempDir folder;
  const auto set = sample(Side::V);
  write_rotations_pt(folder / "v.pt", set);
  const auto to = [&](const char* from, const char* version, int heads = 0) {
    const auto out = folder / (std::string("v_") + version + ".pt");
    convert({folder / from}, out,
            {.to = version, .base = {}, .order = {}, .kv_heads = heads, .layer_ids = {}, .id_space = {}});
    return out;
  };
  const auto v2 = to("v.pt", "v2", 4);
  EXPECT_EQ(version_in(v2), "2");
  EXPECT_EQ(read_rotations(v2).layers.at(1).rotation.size(), 4u);
  EXPECT_EQ(read_rotations(v2).objective, "sst_r_h_pbr_perhead");
  EXPECT_EQ(version_in(to("v_v2.pt", "v3")), "3");
  const auto v1 = to("v_v3.pt", "v1");
  EXPECT_EQ(version_in(v1), "1");
  expect_same(read_rotations(v1), set);

  EXPECT_COMPLAINT(to("v.pt", "v2"), "--kv-heads");
  write_rotations_pt(folder / "heads.pt", sample(Side::V, true));
  EXPECT_COMPLAINT(to("heads.pt", "v1"), "layer 0: heads 0 and 1 have different rotations");
  auto mean = sample(Side::K);
  for (auto& entry : mean.layers) entry.second.means = {Vector::Ones(kDim)};
  write_rotations_pt(folder / "mean.pt", mean);
  EXPECT_EQ(version_in(folder / "mean.pt"), "3");
  for (const char* version : {"v1", "v2"}) EXPECT_COMPLAINT(to("mean.pt", version), "rows lose a mean");
  auto skewed = sample(Side::K);
  for (auto& entry : skewed.layers) {
    auto& layer = entry.second;
    layer.rotation[0] = (layer.rotation[0] * Vector::LinSpaced(kDim, 0.5, 2).asDiagonal()).eval();
    layer.inverse = {layer.rotation[0].inverse()};
  }
  write_rotations_pt(folder / "skewed.pt", skewed);
  EXPECT_COMPLAINT(to("skewed.pt", "v1"), "not orthogonal");
  EXPECT_EQ(version_in(to("skewed.pt", "v3")), "3");
}
TEST(Convert, DirectoriesAndModelsHoldBothSides) {
  TempDir folder;
  const auto k = sample(Side::K), v = sample(Side::V);
  write_rotations_pt(folder / "k_rotation_qqt_r_h_pbr.pt", k);
  write_rotations_pt(folder / "v_rotation_sst_r_h_pbr.pt", v);
  test::write_gguf(folder / "model.gguf", test::toy_model());
  ConvertOptions options;
  EXPECT_COMPLAINT(convert({folder.path()}, folder / "out.gguf", options), "--base");
  options.base = folder / "model.gguf";
  EXPECT_COMPLAINT(convert({folder / "k_rotation_qqt_r_h_pbr.pt"}, folder / "out.gguf", options),
                   "rotations of K and V");
  convert({folder / "k_rotation_qqt_r_h_pbr.pt", folder / "v_rotation_sst_r_h_pbr.pt"}, folder / "out.gguf",
          options);
  const auto done = convert({folder / "out.gguf"}, folder / "back", {});
  EXPECT_EQ(done.files.size(), 2u);
  const auto pair = read_rotation_directory(folder / "back");
  EXPECT_EQ(pair.k.layers.at(2).rotation, k.layers.at(2).rotation);
  EXPECT_EQ(pair.v.layers.at(2).rotation, v.layers.at(2).rotation);
  EXPECT_COMPLAINT(convert({folder / "out.gguf"}, folder / "one.pt", {}), "name a directory");
  convert({folder / "back"}, folder / "codes.safetensors", {});
  const auto codes = read_codes(folder / "codes.safetensors");
  EXPECT_EQ(codes.k.layers.at(1)[0].transform.forward, k.layers.at(1).rotation[0]);
  EXPECT_EQ(codes.v.layers.at(1)[0].codec->name, "sglang-prefill");
}
TEST(Convert, SaysWhatItNeedsAndWritesNothing) {
  TempDir folder;
  write_rotations_pt(folder / "k.pt", sample(Side::K));
  const auto k = folder / "k.pt";
  const auto refused = [&](const std::vector<test::fs::path>& in, const char* out, const char* to,
                           const char* part) {
    ConvertOptions options;
    options.to = to;
    EXPECT_COMPLAINT(convert(in, folder / out, options), part);
    EXPECT_FALSE(test::fs::exists(folder / out)) << out;
  };
  refused({}, "x.pt", "", "no input");
  refused({k}, "x.xyz", "", "the name does not say what to write");
  refused({k}, "x.pt", "v7", "expected one of gguf, codes");
  refused({k, k}, "x", "", "rotations of K given twice");
  refused({k}, "codebook.pt", "", "the keys");
  refused({k}, "oscar_moments_rank0.pt", "", "needs statistics; the input is");
  refused({k}, "oscar_rows_rank0.pt", "", "needs rows or a raw dump");
  refused({k}, "k_pq_n4_c256_d8.pt", "", "needs codebooks");
  refused({k}, "codes.safetensors", "", "of K and of V");
  refused({folder / "absent.pt"}, "x.pt", "", "does not exist");
  write_npy(folder / "a.npy", make_tensor<float>({1}, {1}));
  EXPECT_REFUSED(convert({folder / "a.npy"}, folder / "x.pt", {}),
                 "neither GGUF, HDF5, .pt nor .safetensors");
  write_pt(folder / "strange.pt", PtValue{PtDict{}}, "strange");
  EXPECT_REFUSED(convert({folder / "strange.pt"}, folder / "x.pt", {}),
                 "none of the files that are known here");
}
// No option is passed over in silence.
TEST(Convert, OptionsThatTheConversionDoesNotUseAreRefused) {
  TempDir folder;
  write_rotations_pt(folder / "k.pt", sample(Side::K));
  const auto refused = [&](const std::function<void(ConvertOptions&)>& set, const char* part) {
    ConvertOptions options;
    set(options);
    EXPECT_COMPLAINT(convert({folder / "k.pt"}, folder / "out.pt", options), part);
    EXPECT_FALSE(test::fs::exists(folder / "out.pt"));
  };
  refused([](auto& o) { o.base = "model.gguf"; }, "--base: is for --to gguf");
  refused([](auto& o) { o.order = RotaryOrder::Same; }, "--rotary-order: is for --to gguf");
  refused([](auto& o) { o.kv_heads = 8; }, "--kv-heads: is for --to v2");
  refused([](auto& o) { o.layer_ids = {1}; }, "--layer-ids: is for a codebook.pt");
  refused([](auto& o) { o.id_space = IdSpace::Local; }, "--id-space: is for a raw dump");
}
// Values bit for bit through every format, ids sparse and global on the hybrid model.
TEST(Convert, PublishedFilesThroughEveryFormat) {
  OSCAR_NEED_DATA(data, "oscar-qwen3-4b-thinking");
  TempDir folder;
  int files = 0;
  for (const auto& entry : test::fs::recursive_directory_iterator(data.parent_path())) {
    const auto& path = entry.path();
    if (path.extension() != ".pt" || kind_of(path) != FileKind::Rotations) continue;
    const auto set = read_rotations(path);
    const auto stem = path.stem().string();  // says K or V where the objective does not
    convert({path}, folder / (stem + ".safetensors"), {});
    expect_same(read_rotations(folder / (stem + ".safetensors")), set);
    convert({folder / (stem + ".safetensors")}, folder / (stem + ".pt"), {});
    expect_same(read_rotations(folder / (stem + ".pt")), set);
    ++files;
  }
  EXPECT_EQ(files, 8);
  EXPECT_EQ(kind_of(data.parent_path() / "novakv-gptoss-20b/turboquant_k3v3.pt"), FileKind::TurboQuant);
  EXPECT_EQ(
      read_rotations(data.parent_path() / "oscar-qwen3.5-4b/calibrated/k_rotation.pt").layers.begin()->first,
      3);
}

}  // namespace
}  // namespace oscar
