// The forward against an independent implementation: tests/golden/make_forward.py says how the golden file
// was made.
#include <ATen/ATen.h>

#include "formats/safetensors.h"
#include "libdump/decoder.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

struct Golden {
  SafeTensors file = read_safetensors(test::golden("smollm2_forward.safetensors"));
  std::vector<float> floats(const std::string& name) const { return file.tensors.at(name).floats(); }
  std::vector<int32_t> ids() const {
    const auto wide = file.tensors.at("ids").integers();
    return {wide.begin(), wide.end()};
  }
  std::vector<int64_t> positions() const { return file.tensors.at("positions").integers(); }
};

// Worst relative error over layers and tensors, and of the logits.
struct Errors {
  double rows = 0, logits = 0;
};

Errors compare(const std::filesystem::path& path, Precision precision, int threads, bool deterministic) {
  const Golden golden;
  const auto positions = golden.positions();
  auto model = open_model(path, precision);
  Decoder decoder(*model, {golden.ids()}, {threads, deterministic});
  Errors errors;
  for (int layer = 0; !decoder.done(); ++layer) {
    decoder.run_layer([&](int64_t, const AttentionRows& rows) {
      const LayerShape& s = *rows.shape;
      const auto check = [&](const char* name, const float* values, int64_t width) {
        const auto expected = golden.floats(name);
        std::vector<float> found;
        for (const int64_t t : positions)
          found.insert(found.end(), values + t * width, values + (t + 1) * width);
        errors.rows = std::max(
            errors.rows,
            test::relative_error(
                found, std::span(expected).subspan(static_cast<size_t>(layer) * found.size(), found.size())));
      };
      check("q", rows.q, int64_t{s.q_heads} * s.dim_k);
      check("k", rows.k, int64_t{s.kv_heads} * s.dim_k);
      check("v", rows.v, int64_t{s.kv_heads} * s.dim_v);
      check("o", rows.o, int64_t{s.q_heads} * s.dim_v);
    });
  }
  const auto expected = golden.floats("logits");
  std::vector<float> found;
  for (const int64_t t : positions) {
    const at::Tensor logits = model->logits(decoder.hidden()[0].narrow(0, t, 1));
    for (int64_t v = 0; v < logits.size(1); v += 24) found.push_back(logits.const_data_ptr<float>()[v]);
  }
  errors.logits = test::relative_error(found, expected);
  return errors;
}

TEST(Forward, Float32AgreesWithTransformers) {
  OSCAR_NEED_MODEL(path);
  const Errors errors = compare(path, Precision::Float32, 2, false);
  RecordProperty("rows", std::to_string(errors.rows));
  EXPECT_LE(errors.rows, 1e-4);
  EXPECT_LE(errors.logits, 1e-4);
}

TEST(Forward, BFloat16AgreesWithinItsPrecision) {
  OSCAR_NEED_MODEL(path);
  const Errors errors = compare(path, Precision::BFloat16, 2, true);
  EXPECT_LE(errors.rows, 5e-2);
  EXPECT_LE(errors.logits, 5e-2);
  EXPECT_GE(errors.rows, 1e-4) << "bfloat16 was asked for and float32 was run";
}

}  // namespace
}  // namespace oscar
