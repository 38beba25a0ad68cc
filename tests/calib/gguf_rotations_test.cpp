#include "libcalib/artifacts/gguf_rotations.h"

#include <Eigen/QR>

#include "formats/error.h"
#include "tests/formats/malformed.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

using test::TempDir;

constexpr int kDim = 32, kLayers = 3;  // of the toy model

RotationPair rotations(const std::vector<int>& ids = {0, 1, 2}, int d = kDim) {
  RotationPair pair;
  uint64_t seed = 5;
  for (RotationSet* set : {&pair.k, &pair.v}) {
    set->side = set == &pair.k ? Side::K : Side::V;
    set->objective = set == &pair.k ? "qqt_r_h_pbr" : "sst_r_h_pbr";
    set->composition = "r_h_pbr";
    for (const int id : ids) {
      const auto values = test::normal(static_cast<size_t>(d * d), seed++);
      Matrix m(d, d);
      for (int i = 0; i < d * d; ++i) m.data()[i] = values[static_cast<size_t>(i)];
      set->layers[id].rotation = {Eigen::HouseholderQR<Matrix>(m).householderQ()};
    }
  }
  return pair;
}
// A toy model of another architecture: the keys of its metadata move with the name.
test::GgufDraft model(const std::string& architecture) {
  auto draft = test::toy_model();
  for (auto& entry : draft.metadata) {
    if (entry.first.starts_with("llama.")) entry.first = architecture + entry.first.substr(5);
  }
  draft.set("general.architecture", architecture);
  return draft;
}
struct Exported {
  TempDir folder;
  explicit Exported(const std::string& architecture) {
    test::write_gguf(folder / "base.gguf", model(architecture));
  }
  GgufFile base() const { return GgufFile::open(folder / "base.gguf"); }
  GgufExport write(const RotationPair& pair) const {
    return write_gguf_rotations(folder / "out.gguf", base(), pair, {});
  }
  std::vector<double> stored(const std::string& name) const {
    const auto file = GgufFile::open(folder / "out.gguf");
    const auto* t = file.find(name);
    EXPECT_NE(t, nullptr) << name;
    EXPECT_EQ(t->type->name, "F32");
    return Tensor{DType::F32, t->shape, t->bytes, nullptr}.doubles();
  }
};

// What the engine does: ggml_mul_mat(rot, x)[i] = sum_j rot[i][j] x[j] with x as it caches it.
Vector engine(const std::vector<double>& rot, const Vector& x) {
  Vector y = Vector::Zero(x.size());
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) y[i] += rot[static_cast<size_t>(i * kDim + j)] * x[j];
  }
  return y;
}
// Wrong orientation or wrong rotary order: files that load and give garbled text.
TEST(GgufRotations, TheEngineComputesKR) {
  for (const auto& [architecture, interleaved] : {std::pair{"llama", true}, {"qwen3", false}}) {
    const Exported e(architecture);
    const auto pair = rotations();
    EXPECT_LT(e.write(pair).round_trip, 1e-6);
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto numbers = test::normal(kDim, 40 + static_cast<uint64_t>(layer));
      Vector k(kDim), cached(kDim);
      for (int i = 0; i < kDim; ++i) k[i] = numbers[static_cast<size_t>(i)];
      for (int i = 0; i < kDim / 2; ++i) {
        cached[interleaved ? 2 * i : i] = k[i];
        cached[interleaved ? 2 * i + 1 : i + kDim / 2] = k[i + kDim / 2];
      }
      const Matrix& rk = pair.k.layers.at(layer).rotation[0];
      const Matrix& rv = pair.v.layers.at(layer).rotation[0];
      EXPECT_LT(
          (engine(e.stored(fmt::format("blk.{}.attn_k_rot.weight", layer)), cached) - rk.transpose() * k)
              .norm(),
          1e-5);
      EXPECT_LT(
          (engine(e.stored(fmt::format("blk.{}.attn_v_rot.weight", layer)), k) - rv.transpose() * k).norm(),
          1e-5);
    }
  }
}
TEST(GgufRotations, ReadsBackTheModelsBasisAndReplacesOnWritingAgain) {
  for (const char* architecture : {"llama", "qwen3"}) {
    const Exported e(architecture);
    const auto pair = rotations();
    e.write(pair);
    const auto once = test::read(e.folder / "out.gguf");
    const auto back = read_gguf_rotations(e.folder / "out.gguf");
    EXPECT_EQ(back.k.objective, "qqt_r_h_pbr");
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_LT((back.k.layers.at(layer).rotation[0] - pair.k.layers.at(layer).rotation[0]).norm(), 1e-6);
      EXPECT_LT((back.v.layers.at(layer).rotation[0] - pair.v.layers.at(layer).rotation[0]).norm(), 1e-6);
    }
    write_gguf_rotations(e.folder / "out.gguf", GgufFile::open(e.folder / "out.gguf"), pair, {});
    EXPECT_EQ(test::read(e.folder / "out.gguf"), once);
    const auto file = GgufFile::open(e.folder / "out.gguf");
    const auto base = e.base();
    for (const auto& tensor : base.tensors())
      EXPECT_TRUE(std::ranges::equal(file.find(tensor.name)->bytes, tensor.bytes)) << tensor.name;
  }
}
// A hybrid model has attention in some layers: ids are global, and a file in local ids is refused.
TEST(GgufRotations, HybridModelsTakeGlobalIds) {
  TempDir folder;
  auto draft = model("qwen3");
  std::erase_if(draft.tensors, [](const auto& t) {
    return t.name.starts_with("blk.0.attn_") || t.name.starts_with("blk.1.attn_");
  });
  test::write_gguf(folder / "base.gguf", draft);
  const auto base = GgufFile::open(folder / "base.gguf");
  write_gguf_rotations(folder / "out.gguf", base, rotations({2}), {});
  EXPECT_EQ(read_gguf_rotations(folder / "out.gguf").k.layers.begin()->first, 2);
  EXPECT_COMPLAINT(write_gguf_rotations(folder / "no.gguf", base, rotations({0}), {}),
                   "only in the model: 2; only in the rotations: 0");
  EXPECT_FALSE(test::fs::exists(folder / "no.gguf"));
}
TEST(GgufRotations, RefusesWhatNoEngineReads) {
  const Exported e("qwen3");
  auto pair = rotations();
  pair.k.per_head = true;
  EXPECT_COMPLAINT(e.write(pair), "a rotation per KV head");
  pair = rotations(), pair.k.layers[0].means = {Vector::Ones(kDim)};
  EXPECT_COMPLAINT(e.write(pair), "means");
  pair = rotations(), std::swap(pair.k, pair.v);
  EXPECT_COMPLAINT(e.write(pair), "expected rotations of k");
  EXPECT_COMPLAINT(e.write(rotations({0, 1, 2}, 16)), "has 16 dims");
  const Exported strange("nobody");
  EXPECT_COMPLAINT(strange.write(rotations()), "--rotary-order");
  EXPECT_EQ(
      write_gguf_rotations(strange.folder / "x.gguf", strange.base(), rotations(), {}, RotaryOrder::Same)
          .order,
      RotaryOrder::Same);
  EXPECT_COMPLAINT(read_gguf_rotations(e.folder / "base.gguf"), "has no rotations");
}

}  // namespace
}  // namespace oscar
