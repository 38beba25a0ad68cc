#include "libcalib/artifacts/absorb.h"

#include <Eigen/QR>
#include "formats/error.h"
#include "formats/safetensors_index.h"
#include "tests/formats/malformed.h"

namespace oscar {
namespace {

using test::TempDir;

constexpr int kHidden = 12, kHeads = 4, kKv = 2, kDim = 8;

std::string config(const std::string& more = "") {
  return R"({"model_type":"llama","hidden_size":12,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"num_hidden_layers":2)" +
         more + "}";
}
Tensor weights(DType dtype, const Shape& shape, uint64_t seed, float sigma = 1) {
  const auto values = test::normal(static_cast<size_t>(element_count(shape)), seed, sigma);
  std::vector<std::byte> bytes(values.size() * info(dtype).size());
  from_float(dtype, values.data(), values.size(), bytes.data());
  return make_tensor(dtype, shape, std::move(bytes));
}
struct Checkpoint {
  SafeTensors content;
  std::string text = config();

  explicit Checkpoint(DType dtype = DType::F32, bool bias = false) {
    content.metadata["format"] = "pt";
    content.tensors["model.embed_tokens.weight"] = weights(DType::F32, {16, kHidden}, 1);
    for (int layer = 0; layer < 2; ++layer) {
      const auto name = [&](const char* part) {
        return fmt::format("model.layers.{}.self_attn.{}", layer, part);
      };
      content.tensors[name("q_proj.weight")] = weights(dtype, {kHeads * kDim, kHidden}, 2);
      content.tensors[name("v_proj.weight")] = weights(dtype, {kKv * kDim, kHidden}, 3 + layer);
      content.tensors[name("o_proj.weight")] = weights(dtype, {kHidden, kHeads * kDim}, 5 + layer);
      if (bias) content.tensors[name("v_proj.bias")] = weights(dtype, {kKv * kDim}, 7);
    }
  }
  void save(const test::fs::path& folder) const {
    write_sharded_safetensors(folder, content, 3000);
    test::write(folder / "config.json", text);
    test::write(folder / "tokenizer.json", "{}");
    test::write(folder / "pytorch_model.bin", "old");
  }
};

RotationSet rotations(bool per_head, uint64_t seed = 11) {
  RotationSet set;
  set.side = Side::V;
  set.objective = "sst_r_h_pbr";
  set.per_head = per_head;
  for (int layer = 0; layer < 2; ++layer) {
    for (int h = 0; h < (per_head ? kKv : 1); ++h) {
      const auto values = test::normal(kDim * kDim, seed++);
      Matrix m(kDim, kDim);
      for (int i = 0; i < kDim * kDim; ++i) m.data()[i] = values[static_cast<size_t>(i)];
      set.layers[layer].rotation.push_back(Eigen::HouseholderQR<Matrix>(m).householderQ());
    }
  }
  return set;
}
Matrix matrix(const ShardedSafeTensors& all, const std::string& name) {
  const Tensor* t = all.find(name);
  EXPECT_NE(t, nullptr) << name;
  const auto v = t->doubles();
  return ConstMatrixMap(v.data(), t->shape[0], t->shape.size() > 1 ? t->shape[1] : 1);
}
double difference(const Matrix& a, const Matrix& b) {
  return (a - b).norm() / b.norm();
}

// Per KV head V' = V R for every input, and W_o' V' = W_o V for every query head.
void check_result(const test::fs::path& before, const test::fs::path& after, const RotationSet& set,
                  bool folded, double tolerance) {
  const auto a = read_sharded_safetensors(before), b = read_sharded_safetensors(after);
  ASSERT_EQ(a.shards.size(), b.shards.size());
  for (int layer = 0; layer < 2; ++layer) {
    const auto v = fmt::format("model.layers.{}.self_attn.v_proj.weight", layer),
               o = fmt::format("model.layers.{}.self_attn.o_proj.weight", layer);
    const Matrix va = matrix(a, v), vb = matrix(b, v), oa = matrix(a, o), ob = matrix(b, o);
    for (int h = 0; h < kKv; ++h) {
      const Matrix& r = set.layers.at(layer).of_head(h);
      EXPECT_LT(difference(vb.middleRows(h * kDim, kDim), r.transpose() * va.middleRows(h * kDim, kDim)),
                tolerance);
      EXPECT_GT(difference(vb.middleRows(h * kDim, kDim), va.middleRows(h * kDim, kDim)), 0.1);
    }
    for (int j = 0; j < kHeads; ++j) {
      const int h = j / (kHeads / kKv);
      const Matrix one = oa.middleCols(j * kDim, kDim) * va.middleRows(h * kDim, kDim);
      const Matrix other = ob.middleCols(j * kDim, kDim) * vb.middleRows(h * kDim, kDim);
      if (folded)
        EXPECT_LT(difference(other, one), 2 * tolerance);
      else
        EXPECT_EQ(oa, ob);
    }
    for (const char* same : {"model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"})
      EXPECT_TRUE(std::ranges::equal(a.find(same)->bytes, b.find(same)->bytes)) << same;
  }
  EXPECT_EQ(test::read(before / "config.json"), test::read(after / "config.json"));
  EXPECT_EQ(test::read(before / kSafeTensorsIndex), test::read(after / kSafeTensorsIndex));
  EXPECT_TRUE(test::fs::exists(after / "tokenizer.json"));
  EXPECT_FALSE(test::fs::exists(after / "pytorch_model.bin"));
}

TEST(Absorb, EveryDenseDtypeSharedAndPerHeadFoldedOrNot) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::F32, 1e-6}, {DType::F16, 1e-3}, {DType::BF16, 8e-3}}) {
    for (const bool per_head : {false, true}) {
      for (const bool folded : {false, true}) {
        TempDir folder;
        Checkpoint(dtype).save(folder / "in");
        const auto set = rotations(per_head);
        const auto report = absorb_v(folder / "in", set, folder / "out", {folded, {}});
        EXPECT_EQ(report.dtype, info(dtype).name);
        EXPECT_EQ(report.left, (std::vector<std::string>{"pytorch_model.bin"}));
        check_result(folder / "in", folder / "out", set, folded, tolerance);
      }
    }
  }
}
TEST(Absorb, BiasTurnsWithItsRows) {
  TempDir folder;
  Checkpoint(DType::F32, true).save(folder / "in");
  const auto set = rotations(true);
  absorb_v(folder / "in", set, folder / "out");
  const auto a = read_sharded_safetensors(folder / "in"), b = read_sharded_safetensors(folder / "out");
  const std::string name = "model.layers.1.self_attn.v_proj.bias";
  for (int h = 0; h < kKv; ++h) {
    EXPECT_LT(
        difference(matrix(b, name).middleRows(h * kDim, kDim),
                   set.layers.at(1).of_head(h).transpose() * matrix(a, name).middleRows(h * kDim, kDim)),
        1e-6);
  }
}
TEST(Absorb, FusedRowsOfQueriesAndKeysKeepTheirBytes) {
  TempDir folder;
  Checkpoint c;
  for (int layer = 0; layer < 2; ++layer) {
    c.content.tensors.erase(fmt::format("model.layers.{}.self_attn.v_proj.weight", layer));
    c.content.tensors[fmt::format("model.layers.{}.self_attn.qkv_proj.weight", layer)] =
        weights(DType::BF16, {(kHeads + 2 * kKv) * kDim, kHidden}, 9);
  }
  c.save(folder / "in");
  const auto set = rotations(false);
  absorb_v(folder / "in", set, folder / "out");
  const auto a = read_sharded_safetensors(folder / "in"), b = read_sharded_safetensors(folder / "out");
  const Matrix before = matrix(a, "model.layers.0.self_attn.qkv_proj.weight"),
               after = matrix(b, "model.layers.0.self_attn.qkv_proj.weight");
  constexpr int first = (kHeads + kKv) * kDim;
  EXPECT_EQ(before.topRows(first), after.topRows(first));
  for (int h = 0; h < kKv; ++h)
    EXPECT_LT(difference(after.middleRows(first + h * kDim, kDim),
                         set.layers.at(0).of_head(0).transpose() * before.middleRows(first + h * kDim, kDim)),
              8e-3);
}

Matrix scaled(const ShardedSafeTensors& all, const std::string& stem) {
  Matrix m = matrix(all, stem + "weight");
  const auto scales = all.find(stem + "weight_scale")->doubles();
  for (Eigen::Index r = 0; r < m.rows(); ++r)
    m.row(r) *= scales[scales.size() == 1 ? 0 : static_cast<size_t>(r)];
  return m;
}
TEST(Absorb, Fp8PerTensorAndPerChannelGetNewScales) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{kKv * kDim, 1}, Shape{kKv * kDim}}) {
    TempDir folder;
    Checkpoint c;
    for (int layer = 0; layer < 2; ++layer) {
      const auto stem = fmt::format("model.layers.{}.self_attn.v_proj.", layer);
      c.content.tensors[stem + "weight"] = weights(DType::F8_E4M3, {kKv * kDim, kHidden}, 9, 100);
      std::vector<float> scales(static_cast<size_t>(element_count(shape)));
      for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f * static_cast<float>(1 + i % 3);
      c.content.tensors[stem + "weight_scale"] = make_tensor<float>(shape, scales);
    }
    c.save(folder / "in");
    const auto set = rotations(true);
    EXPECT_EQ(absorb_v(folder / "in", set, folder / "out").dtype, "F8_E4M3");
    const auto a = read_sharded_safetensors(folder / "in"), b = read_sharded_safetensors(folder / "out");
    const std::string stem = "model.layers.0.self_attn.v_proj.";
    const Matrix before = scaled(a, stem), after = scaled(b, stem);
    for (int h = 0; h < kKv; ++h)
      EXPECT_LT(difference(after.middleRows(h * kDim, kDim),
                           set.layers.at(0).of_head(h).transpose() * before.middleRows(h * kDim, kDim)),
                0.04);
    EXPECT_EQ(matrix(b, stem + "weight").cwiseAbs().maxCoeff(), 448) << "the range of the codes is used";
    EXPECT_EQ(b.find(stem + "weight_scale")->shape, shape);
  }
}

// Absorbing twice, a gate after attention, blocks of scales, a file of keys: what would give a model that is
// quietly wrong.
TEST(Absorb, RefusesWhatCannotBeRight) {
  const auto refused = [](const Checkpoint& c, const RotationSet& set, const std::string& part,
                          bool fold = false) {
    TempDir folder;
    c.save(folder / "in");
    EXPECT_COMPLAINT(absorb_v(folder / "in", set, folder / "out", {fold, {}}), part);
    EXPECT_FALSE(test::fs::exists(folder / "out"));
    EXPECT_EQ(std::distance(test::fs::directory_iterator(folder.path()), {}), 1) << "something half-written";
  };
  const std::string v = "model.layers.0.self_attn.v_proj.";
  Checkpoint plain, c;
  c.text = config(R"(,"attn_output_gate":true)");
  refused(c, rotations(false), "output gate");
  c = plain, c.text = config(R"(,"model_type":"qwen3_next")");
  refused(c, rotations(false), "output gate");
  c = plain, c.text = config(R"(,"kv_lora_rank":512)");
  refused(c, rotations(false), "kv_lora_rank");
  c = plain,
  c.text = config(R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]})");
  refused(c, rotations(false), "weight_block_size");
  c = plain, c.content.tensors[v + "weight_scale_inv"] = weights(DType::F32, {1, 1}, 1);
  refused(c, rotations(false), "block-scaled FP8");
  c = plain, c.content.tensors[v + "weight"] = weights(DType::F8_E4M3, {kKv * kDim, kHidden}, 1);
  refused(c, rotations(false), "FP8 without a weight_scale");
  c = plain, c.content.tensors[v + "weight_scale"] = weights(DType::F32, {1}, 1);
  refused(c, rotations(false), "beside weights that are not FP8");
  c = plain, c.content.tensors["model.layers.0.self_attn.v_norm.weight"] = weights(DType::F32, {kDim}, 1);
  refused(c, rotations(false), "norm on values");
  c = plain, c.content.tensors["model.layers.0.self_attn.o_proj.input_scale"] = weights(DType::F32, {1}, 1);
  refused(c, rotations(false), "scale of its input", true);
  c = plain, c.content.tensors.erase("model.layers.0.self_attn.o_proj.weight");
  refused(c, rotations(false), "layer 0 has no o_proj.weight", true);
  c = plain, c.content.tensors[v + "weight"] = weights(DType::F32, {kKv * kDim + 8, kHidden}, 1);
  refused(c, rotations(false), "expected [16, in]");
  c = plain, c.text = R"({"num_attention_heads":4})";
  refused(c, rotations(false), "'num_hidden_layers' is missing");

  auto set = rotations(false);
  set.side = Side::K;
  refused(plain, set, "rotates keys");
  set = rotations(false), set.layers.erase(1);
  refused(plain, set, "only in the model [1]");
  set = rotations(false), set.layers[2] = set.layers[1];
  refused(plain, set, "only in the rotation [2]");
  set = rotations(false), set.layers[0].rotation[0] = Matrix::Identity(4, 4);
  refused(plain, set, "the rotation has 4 dims");
  set = rotations(false), set.layers[0].means = {Vector::Ones(kDim)};
  refused(plain, set, "takes a mean off");

  TempDir folder;
  plain.save(folder / "in");
  absorb_v(folder / "in", rotations(false), folder / "out");
  EXPECT_COMPLAINT(absorb_v(folder / "out", rotations(false), folder / "twice"), "rotated already");
  test::fs::remove(folder / "out" / "oscar_absorbed.json");
  EXPECT_COMPLAINT(absorb_v(folder / "out", rotations(false), folder / "twice"), "rotated already");
  EXPECT_COMPLAINT(absorb_v(folder / "in", rotations(false), folder / "out"), "new or an empty directory");
  auto broken = plain;
  auto values = test::normal(kKv * kDim * kHidden, 1);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  broken.content.tensors[v + "weight"] = make_tensor<float>({kKv * kDim, kHidden}, values);
  broken.save(folder / "nan");
  EXPECT_REFUSED(absorb_v(folder / "nan", rotations(false), folder / "x"), "not finite");
  EXPECT_FALSE(test::fs::exists(folder / "x"));
}

}  // namespace
}  // namespace oscar
