#include "libdump/weights/safetensors_weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>

#include "formats/error.h"
#include "formats/mapped_file.h"
#include "formats/sha256.h"
#include "libdump/torch_device.h"
#include "libdump/weights/finite.h"
#include "libdump/weights/mxfp4.h"

namespace oscar {
namespace {

constexpr int64_t kBlock =
    128;  // of block-scaled FP8, both ways; the last block of a row or column may be cut
constexpr std::string_view kEmbedding = "embed_tokens.weight", kWeight = ".weight", kBlocks = "_blocks",
                           kScales = "_scales";

bool is_scale(std::string_view name) {
  return name.ends_with(".weight_scale") || name.ends_with(".weight_scale_inv") ||
         name.ends_with(".input_scale");
}
// Kept by some exporters; computed here.
bool is_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".masked_bias") ||
         name.ends_with(".attn.bias");
}

// N of "model.layers.N.", -1 of other names.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view begin = "model.layers.";
  int64_t layer = -1;
  if (name.starts_with(begin)) std::from_chars(name.data() + begin.size(), name.data() + name.size(), layer);
  return layer;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  return names.size() > kShown ? text + fmt::format(" and {} more", names.size() - kShown) : text;
}

}  // namespace

SafeTensorsWeights::SafeTensorsWeights(const std::filesystem::path& directory)
    : directory_(directory), shards_(read_sharded_safetensors(directory)) {
  // "model." of most, "model.language_model." or "language_model.model." of models that also see, "" of bare
  // decoders.
  std::string found;
  for (const auto& shard : shards_.shards) {
    for (const auto& entry : shard.content.tensors) {
      // "mtp." predicts further tokens.
      if (entry.first.ends_with(kEmbedding) && !entry.first.starts_with("mtp.") &&
          (found.empty() || entry.first.size() < found.size()))
        found = entry.first;
    }
  }
  prefix_ = found.substr(0, found.size() - std::min(found.size(), kEmbedding.size()));
  for (const auto& shard : shards_.shards) {
    for (const auto& [name, tensor] : shard.content.tensors) {
      const auto head = name.find("lm_head.");
      if (head != name.npos)
        tensors_.emplace(name.substr(head), &tensor);
      else if (name.starts_with(prefix_))
        tensors_.emplace("model." + name.substr(prefix_.size()), &tensor);
      else
        tensors_.emplace(name, &tensor);
    }
  }
}

int64_t SafeTensorsWeights::leave_out(std::initializer_list<std::string_view> prefixes) {
  return static_cast<int64_t>(std::erase_if(tensors_, [&](const auto& entry) {
    return std::ranges::any_of(prefixes,
                               [&](std::string_view prefix) { return entry.first.starts_with(prefix); });
  }));
}

const Tensor* SafeTensorsWeights::find(const std::string& name) const {
  const auto entry = tensors_.find(name);
  return entry == tensors_.end() ? nullptr : entry->second;
}

bool SafeTensorsWeights::same(const std::string& a, const std::string& b) const {
  const Tensor *x = find(a), *y = find(b);
  if (!x || !y) return true;
  const bool equal = x->dtype == y->dtype && x->shape == y->shape && std::ranges::equal(x->bytes, y->bytes);
  for (const Tensor* tensor : {x, y}) MappedFile::forget(tensor->bytes);
  return equal;
}

const Tensor& SafeTensorsWeights::need(const std::string& name, const std::vector<int64_t>& shape) const {
  const Tensor* tensor = find(name);
  if (!tensor) throw failure("{}: tensor {} {} is missing", directory_.string(), name, to_string(shape));
  if (tensor->shape != shape)
    throw failure("{}: tensor {}: expected shape {}, found {}", directory_.string(), name, to_string(shape),
                  to_string(tensor->shape));
  const auto dtype = tensor->dtype;
  if (dtype != DType::F32 && dtype != DType::BF16 && dtype != DType::F16 && dtype != DType::F8_E4M3)
    throw invalid("{}: tensor {}: {} is not supported; expected BF16, F16, F32 or F8_E4M3 with scales",
                  directory_.string(), name, info(dtype).name);
  return *tensor;
}

SafeTensorsWeights::Scales SafeTensorsWeights::scales_of(const std::string& name,
                                                         const Tensor& weight) const {
  const std::string stem = name.substr(0, name.size() - kWeight.size());
  const Tensor* scale = find(stem + ".weight_scale");
  const Tensor* blocks = find(stem + ".weight_scale_inv");
  const Tensor* any = scale ? scale : blocks;
  const auto where = fmt::format("{}: tensor {}", directory_.string(), name);
  if (weight.shape.size() != 2)
    throw failure("{}: FP8 {}: expected a matrix", where, to_string(weight.shape));
  if (!any) throw failure("{}: FP8 without {}.weight_scale or .weight_scale_inv beside it", where, stem);
  if (any->dtype != DType::F32 && any->dtype != DType::BF16 && any->dtype != DType::F16)
    throw failure("{}: its scale is {}: expected F32, BF16 or F16", where, info(any->dtype).name);
  const int64_t rows = weight.shape[0], columns = weight.shape[1];
  const int64_t block_rows = (rows + kBlock - 1) / kBlock, block_columns = (columns + kBlock - 1) / kBlock;
  Scales scales{any->floats(), 1, 1, columns};
  if (any->count() == 1) {
    scales.block_rows = rows;
  } else if (any->shape == Shape{block_rows, block_columns} &&
             (blocks || (rows > kBlock && columns > kBlock))) {
    scales.columns = block_columns;
    scales.block_rows = scales.block_columns = kBlock;
  } else if (any->shape != Shape{rows} && any->shape != Shape{rows, 1}) {
    throw failure("{}: scales {} of {}: expected one, [{}], or blocks [{}, {}]", where, to_string(any->shape),
                  to_string(weight.shape), rows, block_rows, block_columns);
  }
  return scales;
}

SafeTensorsWeights::Packed SafeTensorsWeights::packed(const std::string& name,
                                                      const std::vector<int64_t>& shape) const {
  const Packed found{find(name + std::string(kBlocks)), find(name + std::string(kScales))};
  if (!found.blocks && !found.scales) return found;
  const auto where = fmt::format("{}: tensor {}", directory_.string(), name);
  if (!found.blocks || !found.scales || find(name))
    throw failure("{}: MXFP4 is a tensor of blocks and one of scales, and no other; found{}{}{}", where,
                  found.blocks ? " _blocks" : "", found.scales ? " _scales" : "",
                  find(name) ? " and the tensor itself" : "");
  if (shape.size() != 3 || shape[1] % mxfp4::kBlock != 0)
    throw failure("{}: MXFP4 of shape {}: expected (experts, in, out) with blocks of {} of `in`", where,
                  to_string(shape), mxfp4::kBlock);
  const int64_t blocks = shape[1] / mxfp4::kBlock;
  expect(*found.blocks, DType::U8, {shape[0], shape[2], blocks, mxfp4::kBlock / 2}, where + "_blocks");
  expect(*found.scales, DType::U8, {shape[0], shape[2], blocks}, where + "_scales");
  return found;
}

void SafeTensorsWeights::convert(const std::string& name, const Tensor& weight, int64_t first, int64_t rows,
                                 float* out) const {
  const int64_t columns =
      weight.shape.size() > 1 ? weight.count() / std::max<int64_t>(weight.shape[0], 1) : 1;
  const size_t offset = static_cast<size_t>(first * columns) * info(weight.dtype).size();
  to_float(weight.dtype, weight.bytes.data() + offset, static_cast<size_t>(rows * columns), out);
  if (weight.dtype != DType::F8_E4M3) return;
  const Scales scales = scales_of(name, weight);
  for (int64_t r = 0; r < rows; ++r) {
    const float* of_row = scales.values.data() + (first + r) / scales.block_rows * scales.columns;
    for (int64_t c = 0; c < columns; ++c) out[r * columns + c] *= of_row[c / scales.block_columns];
  }
}

at::Tensor SafeTensorsWeights::load(const std::string& name, const std::vector<int64_t>& shape) const {
  const Tensor& weight = need(name, shape);
  at::Tensor out = at::empty(shape, at::kFloat);
  convert(name, weight, 0, shape.at(0), out.mutable_data_ptr<float>());
  MappedFile::forget(weight.bytes);  // a weight is read once a run
  check_finite(out, name);
  return out;
}

at::Tensor SafeTensorsWeights::load_on(at::Device device, const std::string& name,
                                       const std::vector<int64_t>& shape) const {
  const Tensor& weight = need(name, shape);
  const auto dtype = weight.dtype;
  if (device.is_cpu() || (dtype != DType::BF16 && dtype != DType::F16))
    return WeightSource::load_on(device, name, shape);
  at::Tensor stored = at::empty(shape, at::TensorOptions(dtype == DType::BF16 ? at::kBFloat16 : at::kHalf)
                                           .pinned_memory(true));
  auto* to = static_cast<std::byte*>(stored.mutable_data_ptr());
  at::parallel_for(0, static_cast<int64_t>(weight.bytes.size()), 1 << 20, [&](int64_t first, int64_t last) {
    std::memcpy(to + first, weight.bytes.data() + first, static_cast<size_t>(last - first));
  });
  MappedFile::forget(weight.bytes);
  const at::Tensor there = to_device(stored, device).to(at::kFloat);
  if (!at::isfinite(there).all().item<bool>()) check_finite(stored.to(at::kFloat), name);  // says where
  return there;
}

at::Tensor SafeTensorsWeights::load_part(const std::string& name, const std::vector<int64_t>& shape,
                                         int64_t index) const {
  at::Tensor out;
  if (const Packed codes = packed(name, shape); codes.blocks) {
    const int64_t blocks = codes.scales->count() / shape[0];
    out = at::empty({shape[2], shape[1]}, at::kFloat);
    mxfp4::decode(codes.blocks->bytes.data() + index * blocks * (mxfp4::kBlock / 2),
                  codes.scales->bytes.data() + index * blocks, blocks, out.mutable_data_ptr<float>());
    out = out.t().contiguous();
    MappedFile::forget(codes.blocks->bytes);
  } else {
    out = at::empty(std::vector<int64_t>(shape.begin() + 1, shape.end()), at::kFloat);
    const Tensor& weight = need(name, shape);
    convert(name, weight, index, 1, out.mutable_data_ptr<float>());
    MappedFile::forget(weight.bytes);
  }
  check_finite(out, name);
  return out;
}

at::Tensor SafeTensorsWeights::load_rows(const std::string& name, const std::vector<int64_t>& shape,
                                         std::span<const int32_t> rows) const {
  const Tensor& weight = need(name, shape);
  at::Tensor out = at::empty({static_cast<int64_t>(rows.size()), shape.at(1)}, at::kFloat);
  auto* to = out.mutable_data_ptr<float>();
  for (const int32_t row : rows) {
    convert(name, weight, row, 1, to);
    to += shape[1];
  }
  MappedFile::forget(weight.bytes);
  check_finite(out, name);
  return out;
}

void SafeTensorsWeights::check(const std::map<std::string, std::vector<int64_t>>& expected) const {
  std::vector<std::string> missing, surplus;
  int64_t last = -1;
  for (const auto& [name, shape] : expected) {
    last = std::max(last, layer_of(name));
    if (!find(name) && !packed(name, shape).blocks) missing.push_back(name);
  }
  for (const auto& entry : tensors_) {
    const auto& name = entry.first;
    const auto layer = layer_of(name);
    if (layer > last && layer <= last + layers_after_) continue;
    const bool tied_head = name == "lm_head.weight";  // some exporters write the shared matrix twice
    const auto of_packed = [&](std::string_view suffix) {
      return name.ends_with(suffix) && expected.contains(name.substr(0, name.size() - suffix.size()));
    };
    if (of_packed(kBlocks) || of_packed(kScales)) continue;
    if (!expected.contains(name) && !is_scale(name) && !is_buffer(name) && !tied_head)
      surplus.push_back(name);
  }
  if (!missing.empty() || !surplus.empty()) {
    throw failure(
        "{}: the tensors are not those of this architecture as it is computed here; missing: {}; left over: "
        "{}",
        directory_.string(), missing.empty() ? "none" : listed(missing),
        surplus.empty() ? "none" : listed(surplus));
  }
  for (const auto& [name, shape] : expected) {
    if (packed(name, shape).blocks) continue;
    const Tensor& weight = need(name, shape);
    if (weight.dtype == DType::F8_E4M3) scales_of(name, weight);
  }
}

int64_t SafeTensorsWeights::bytes() const {
  int64_t total = 0;
  for (const auto& shard : shards_.shards)
    total += static_cast<int64_t>(std::filesystem::file_size(directory_ / shard.file));
  return total;
}

std::string SafeTensorsWeights::digest() const {
  Sha256 sha;
  // What the numbers mean is in the configuration.
  if (const auto config = directory_ / "config.json"; std::filesystem::exists(config))
    sha.update(sha256_file(config));
  for (const auto& shard : shards_.shards) sha.update(sha256_file(directory_ / shard.file));
  return sha.hex();
}

}  // namespace oscar
