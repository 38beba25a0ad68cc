// Our files in the hands of torch, safetensors, NumPy and h5py, and theirs in ours. Needs a Python that has
// them: OSCAR_TEST_PYTHON.
#include <cstdlib>

#include "formats/hdf5.h"
#include "formats/npy.h"
#include "formats/pt.h"
#include "formats/safetensors.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

class Interop : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("OSCAR_TEST_PYTHON");
    if (!python || !*python)
      GTEST_SKIP() << "needs OSCAR_TEST_PYTHON, a Python with torch, safetensors and h5py";
    python_ = python;
  }
  void script(const std::string& mode) {
    const auto path = test::fs::path(OSCAR_SOURCE_DIR) / "tests/formats/interop.py";
    const auto outcome = test::run({python_, path.string(), mode, folder_.path().string()});
    ASSERT_EQ(outcome.code, 0) << outcome;
  }
  std::string python_;
  test::TempDir folder_;
  Tensor matrix_ = make_tensor<float>({2, 3}, {0, 1, 2, 3, 4, 5});
};

TEST_F(Interop, TheyReadWhatWeWrite) {
  PtDict layer, layers, root;
  layer.set("layer_id", {int64_t{3}});
  layer.set("rotation", {matrix_});
  layers.set(int64_t{3}, {layer});
  root.set("format_version", {int64_t{1}});
  root.set("objective", {std::string("test")});
  root.set("layers", {layers});
  write_pt(folder_ / "a.pt", {root}, "a");

  const float values[] = {1.5f, -2.0f};
  std::vector<std::byte> bytes(4);
  from_float(DType::BF16, values, 2, bytes.data());
  const auto half = make_tensor(DType::BF16, {2}, bytes);
  write_safetensors(folder_ / "a.safetensors", {{{"matrix", matrix_}, {"half", half}}, {}});
  write_npy(folder_ / "a.npy", matrix_);

  Hdf5Writer writer(folder_ / "a.h5");
  writer.attribute("/", "model", "späß");
  writer.attribute("/", "tokens", int64_t{7});
  writer.attribute("/g", "pi", 3.25);
  writer.dataset("/g/matrix", matrix_);
  writer.dataset("/half", half);
  writer.dataset("/large", make_tensor<float>({200, 100}, std::vector<float>(20000, 1)));
  writer.close();
  script("check");
}

TEST_F(Interop, WeReadWhatTheyWrite) {
  script("make");
  const auto expected = matrix_.floats();
  const auto pt = read_pt(folder_ / "b.pt");
  const auto& layer = pt.dict("b.pt").find("layers")->dict("layers").find(int64_t{3})->dict("layer 3");
  EXPECT_EQ(layer.find("rotation")->tensor("rotation").floats(), expected);
  const auto content = read_safetensors(folder_ / "b.safetensors");
  EXPECT_EQ(content.tensors.at("matrix").floats(), expected);
  EXPECT_EQ(content.tensors.at("half").floats(), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(content.metadata.at("model"), "späß");
  EXPECT_EQ(read_npy(folder_ / "b.npy").floats(), expected);
  const Hdf5Reader reader(folder_ / "b.h5");
  EXPECT_EQ(reader.text("/", "model"), "späß");
  EXPECT_EQ(reader.integer("/", "tokens"), 7);
  EXPECT_EQ(reader.text("/g", "fixed"), "fixed");
  EXPECT_EQ(reader.dataset("/g/matrix").floats(), expected);
}

}  // namespace
}  // namespace oscar
