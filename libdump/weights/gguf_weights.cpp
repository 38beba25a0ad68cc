#include "libdump/weights/gguf_weights.h"

#include <ATen/ATen.h>

#include <charconv>
#include <set>

#include "formats/error.h"
#include "formats/sha256.h"
#include "libdump/dequant.h"
#include "libdump/weights/finite.h"

namespace oscar {

const GgufName& GgufWeights::name_of(const std::string& name) const {
  const auto known = names_.find(name);
  if (known == names_.end()) throw std::logic_error("no GGUF name for " + name);
  return known->second;
}

static Shape without_ones(const Shape& shape) {
  Shape out;
  std::ranges::copy_if(shape, std::back_inserter(out), [](int64_t n) { return n != 1; });
  return out;
}

const GgufTensor& GgufWeights::find(const std::string& canonical, const std::vector<int64_t>& shape) const {
  const auto file = file_->file()->path().string();
  const std::string& name = name_of(canonical).name;
  const GgufTensor* tensor = file_->find(name);
  if (!tensor)
    throw failure("{}: tensor {} {} is missing: the file is incomplete or of another architecture", file,
                  name, to_string(shape));
  if (without_ones(tensor->shape) != without_ones(shape))
    throw failure("{}: tensor {}: expected shape {}, found {}", file, name, to_string(shape),
                  to_string(tensor->shape));
  if (!can_dequantise(*tensor->type)) throw invalid("{}: tensor {}: {}", file, name, refusal(*tensor->type));
  return *tensor;
}

static at::Tensor halves(const at::Tensor& weight, int64_t heads) {
  const int64_t d = weight.size(0) / heads, in = weight.numel() / weight.size(0);
  return weight.view({heads, d / 2, 2, in}).transpose(1, 2).reshape(weight.sizes());
}

at::Tensor GgufWeights::load(const std::string& name, const std::vector<int64_t>& shape) const {
  const GgufTensor& tensor = find(name, shape);
  at::Tensor out = at::empty(shape, at::kFloat);
  dequantise(*tensor.type, tensor.bytes.data(), out.numel(), out.mutable_data_ptr<float>());
  check_finite(out, name_of(name).name);
  MappedFile::forget(tensor.bytes);  // a weight is read once a run
  const auto& [in_file, heads, negative_exponential] = name_of(name);
  if (negative_exponential) {
    if (!(out <= 0).all().item<bool>())
      throw failure("{}: tensor {}: expected -e^x, found a positive number", file_->file()->path().string(),
                    in_file);
    return out.neg_().log_();
  }
  return heads ? halves(out, heads) : out;
}

at::Tensor GgufWeights::load_part(const std::string& name, const std::vector<int64_t>& shape,
                                  int64_t index) const {
  const GgufTensor& tensor = find(name, shape);
  at::Tensor out = at::empty(std::vector<int64_t>(shape.begin() + 1, shape.end()), at::kFloat);
  const size_t bytes = tensor.bytes.size() / static_cast<size_t>(shape[0]);
  dequantise(*tensor.type, tensor.bytes.data() + static_cast<size_t>(index) * bytes, out.numel(),
             out.mutable_data_ptr<float>());
  MappedFile::forget(tensor.bytes.subspan(static_cast<size_t>(index) * bytes, bytes));
  check_finite(out, name_of(name).name);
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
  MappedFile::forget(tensor.bytes);
  check_finite(out, name_of(name).name);
  return out;
}

// Of "blk.7.attn_q.weight"; -1 of a tensor that belongs to no layer.
static int layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int layer = -1;
  if (name.starts_with(kPrefix))
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

void GgufWeights::check(const std::map<std::string, std::vector<int64_t>>& expected) const {
  std::set<std::string_view> known;
  for (const auto& entry : expected) known.insert(name_of(entry.first).name);
  for (const auto& tensor : file_->tensors()) {
    // These belong to the rotary embedding, which the configuration has read.
    const bool rope = tensor.name == "rope_freqs.weight" || tensor.name.starts_with("rope_factors_");
    const int layer = layer_of(tensor.name);
    const bool after = layer >= first_after_ && layer < last_after_;
    if (!known.contains(tensor.name) && !rope && !after) {
      throw invalid(
          "{}: tensor {} is not part of this architecture as it is computed here (biases, experts and rope "
          "factors are supported where the family says so)",
          file_->file()->path().string(), tensor.name);
    }
  }
  for (const auto& [name, shape] : expected) find(name, shape);
}

int64_t GgufWeights::bytes() const {
  return static_cast<int64_t>(file_->file()->bytes().size());
}
std::string GgufWeights::digest() const {
  return sha256_file(file_->file()->path());
}

}  // namespace oscar
