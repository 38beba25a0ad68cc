// turboquant_k3v3.pt: maps turned to ours, levels as they are, and both codecs of its reader.
#include "libcalib/artifacts/turboquant_bundle.h"

#include "tests/calib/pt_support.h"

namespace oscar::test {
namespace {

// A rotation that is not symmetric: the order of channels turned by `by`.
Matrix turned(int64_t d, int64_t by) {
  Matrix m = Matrix::Zero(d, d);
  for (int64_t i = 0; i < d; ++i) m(i, (i + by) % d) = i % 2 ? -1 : 1;
  return m;
}
PtValue stack(const std::vector<Matrix>& matrices) {
  return pt(pt_fields::matrices_tensor(matrices, true));
}
PtDict bundle(bool affine) {
  PtDict file;
  file.set("head_dim", pt(int64_t{8}));
  file.set("k_bits", pt(int64_t{2}));
  file.set("v_bits", pt(int64_t{1}));
  file.set("seed", pt(int64_t{42}));
  file.set("n_layers", pt(int64_t{2}));
  file.set("k_rotation", stack({turned(8, 1), turned(8, 2)}));
  file.set("v_rotation", stack({turned(8, 3), turned(8, 4)}));
  file.set("note", pt("made for a test"));
  if (affine) {
    file.set("codec", pt("oscar_affine"));
    file.set("k_clip", pt(0.96));
    file.set("groups", pt(int64_t{2}));
  } else {
    file.set("k_centroids", pt(make_tensor({4}, std::vector<float>{-0.5f, -0.25f, 0.25f, 0.5f})));
    file.set("v_centroids", pt(make_tensor({2}, std::vector<float>{-0.25f, 0.25f})));
  }
  return file;
}

TEST(TurboQuantBundle, MapsAreTheTransposeOfWhatIsStored) {
  const TempDir folder;
  write_pt(folder / "t.pt", pt(bundle(false)), "any");
  const TurboQuantBundle found = read_turboquant_bundle(folder / "t.pt");
  EXPECT_EQ(found.codec, "turboquant");
  EXPECT_EQ(found.k.objective, "turboquant");
  EXPECT_EQ(found.k.side, Side::K);
  EXPECT_EQ(found.v.side, Side::V);
  ASSERT_EQ(found.k.layers.size(), 2u);
  EXPECT_EQ(found.k.layers.at(1).rotation.at(0), Matrix(turned(8, 2).transpose()));
  EXPECT_EQ(found.v.layers.at(0).rotation.at(0), Matrix(turned(8, 3).transpose()));
  EXPECT_EQ(found.k_centroids, (std::vector<double>{-0.5, -0.25, 0.25, 0.5}));
  EXPECT_EQ(found.v_centroids, (std::vector<double>{-0.25, 0.25}));
  EXPECT_EQ(found.k_bits, 2);
  EXPECT_EQ(found.v_bits, 1);
  EXPECT_EQ(found.seed, 42);
  EXPECT_EQ(found.note, "made for a test");
}

TEST(TurboQuantBundle, AffineMapsAreWhatIsStored) {
  const TempDir folder;
  write_pt(folder / "t.pt", pt(bundle(true)), "any");
  const TurboQuantBundle found = read_turboquant_bundle(folder / "t.pt");
  EXPECT_EQ(found.codec, "oscar_affine");
  EXPECT_EQ(found.v.objective, "oscar_affine");
  EXPECT_EQ(found.k.layers.at(1).rotation.at(0), turned(8, 2));
  EXPECT_TRUE(found.k_centroids.empty());
  EXPECT_EQ(found.k_clip, 0.96);
  EXPECT_EQ(found.v_clip, 1);
  EXPECT_EQ(found.groups, 2);
}

TEST(TurboQuantBundle, RefusesLies) {
  const TempDir folder;
  const auto refused = [&](const Change& spoil, const std::string& part, bool affine = false) {
    PtDict file = bundle(affine);
    spoil(file);
    write_pt(folder / "bad.pt", pt(file), "bad");
    const auto said = message_of<std::runtime_error>([&] { read_turboquant_bundle(folder / "bad.pt"); });
    expect_said(said, part);
    expect_said(said, "bad.pt");
  };
  for (const char* name : {"k_rotation", "v_rotation", "k_bits", "v_bits", "k_centroids", "v_centroids"})
    refused([=](PtDict& file) { remove(file, name); }, fmt::format("'{}' is missing", name));
  refused([](PtDict& file) { file.set("n_layers", pt(int64_t{3})); }, "n_layers: expected 2 to 2, found 3");
  refused([](PtDict& file) { file.set("head_dim", pt(int64_t{16})); }, "head_dim: expected 8 to 8, found 16");
  refused([](PtDict& file) { file.set("k_bits", pt(int64_t{3})); },
          "k_centroids: expected [8] of floats, found F32 [4]");
  refused([](PtDict& file) { file.set("k_bits", pt(int64_t{9})); }, "k_bits: expected 1 to 8, found 9");
  refused(
      [](PtDict& file) {
        file.set("v_centroids", pt(make_tensor({2}, std::vector<float>{1, 1})));
      },
      "v_centroids: the levels must ascend");
  refused(
      [](PtDict& file) {
        file.set("k_rotation", stack({turned(8, 1), 2 * turned(8, 2)}));
      },
      "k_rotation: layer 1: not orthogonal");
  refused([](PtDict& file) { file.set("v_rotation", stack({turned(8, 1)})); }, "found 2");
  refused(
      [](PtDict& file) {
        file.set("k_rotation", pt(make_tensor({2, 4, 8}, std::vector<float>(64))));
      },
      "k_rotation: expected [layers, d, d], found [2, 4, 8]");
  refused([](PtDict& file) { file.set("codec", pt("polar")); },
          "codec: expected turboquant or oscar_affine, found 'polar'");
  refused([](PtDict& file) { file.set("groups", pt(int64_t{0})); }, "groups: expected 1 to", true);
}

TEST(TurboQuantBundle, Published) {
  OSCAR_NEED_DATA(path, "novakv-gptoss-20b/turboquant_k3v3.pt");
  const TurboQuantBundle found = read_turboquant_bundle(path);
  EXPECT_EQ(found.codec, "turboquant");
  EXPECT_EQ(found.k.layers.size(), 12u);
  EXPECT_EQ(found.v.layers.size(), 12u);
  EXPECT_EQ(found.k.layers.at(11).rotation.at(0).rows(), 64);
  EXPECT_EQ(found.k_bits, 3);
  EXPECT_EQ(found.seed, 42);
  EXPECT_FALSE(found.note.empty());
  // Lloyd-Max of N(0, 1 / d): the textbook levels over sqrt(d).
  const double expected[] = {-2.1519, -1.3439, -0.7560, -0.2451, 0.2451, 0.7560, 1.3439, 2.1519};
  ASSERT_EQ(found.k_centroids.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(found.k_centroids[i] * 8, expected[i], 1e-3);
    EXPECT_EQ(found.k_centroids[i], found.v_centroids[i]);
  }
  // Rows are x Pi^T.
  const auto stored = read_pt(path).dict("").find("k_rotation")->tensor("").doubles();
  EXPECT_EQ(found.k.layers.at(2).rotation.at(0)(3, 5), stored[2 * 4096 + 5 * 64 + 3]);
}

}  // namespace
}  // namespace oscar::test
