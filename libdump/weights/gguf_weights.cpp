#include "libdump/weights/gguf_weights.h"

#include <ATen/ATen.h>

#include <cmath>

#include "formats/error.h"
#include "formats/sha256.h"
#include "libdump/dequant.h"

namespace oscar {

const GgufTensor& GgufWeights::find(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto file = file_->file()->path().string();
  const GgufTensor* tensor = file_->find(name);
  if (!tensor)
    throw failure("{}: tensor {} {} is missing: the file is incomplete or of another architecture", file,
                  name, to_string(shape));
  if (tensor->shape != shape)
    throw failure("{}: tensor {}: expected shape {}, found {}", file, name, to_string(shape),
                  to_string(tensor->shape));
  if (!can_dequantise(*tensor->type)) throw invalid("{}: tensor {}: {}", file, name, refusal(*tensor->type));
  return *tensor;
}

static void check_finite(const at::Tensor& tensor, const std::string& name) {
  const auto* values = tensor.const_data_ptr<float>();
  // The sum of x * 0 is NaN exactly when some x is NaN or infinite; it vectorises where isfinite() does not.
  float sum = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) sum += values[i] * 0.0f;
  if (sum == 0) return;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (!std::isfinite(values[i]))
      throw failure("tensor {}: element {} is {}: the checkpoint is damaged", name, i, values[i]);
  }
}

at::Tensor GgufWeights::load(const std::string& name, const std::vector<int64_t>& shape) const {
  const GgufTensor& tensor = find(name, shape);
  at::Tensor out = at::empty(shape, at::kFloat);
  dequantise(*tensor.type, tensor.bytes.data(), out.numel(), out.mutable_data_ptr<float>());
  check_finite(out, name);
  return out;
}

at::Tensor GgufWeights::load_rows(const std::string& name, const std::vector<int64_t>& shape,
                                  std::span<const int32_t> rows) const {
  const GgufTensor& tensor = find(name, shape);
  const int64_t columns = shape.at(1);
  const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(shape[0]);
  at::Tensor out = at::empty({static_cast<int64_t>(rows.size()), columns}, at::kFloat);
  auto* to = out.mutable_data_ptr<float>();
  for (const int32_t row : rows) {
    dequantise(*tensor.type, tensor.bytes.data() + static_cast<size_t>(row) * row_bytes, columns, to);
    to += columns;
  }
  check_finite(out, name);
  return out;
}

int64_t GgufWeights::bytes() const {
  return static_cast<int64_t>(file_->file()->bytes().size());
}
std::string GgufWeights::digest() const {
  return sha256_hex(file_->file()->bytes());
}

}  // namespace oscar
