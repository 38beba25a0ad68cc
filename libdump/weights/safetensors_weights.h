// The tensors of a Hugging Face directory as a WeightSource. BF16, F16, F32, FP8 (e4m3) with one scale a
// tensor, a channel or a block, and the MXFP4 of gpt-oss: instead of a tensor X (E, in, out) X_blocks (E,
// out, in / 32, 16) and X_scales (E, out, in / 32), both U8 (mxfp4.h).
#pragma once
#include <filesystem>

#include "formats/safetensors_index.h"
#include "libdump/weights/weight_source.h"

namespace oscar {

class SafeTensorsWeights : public WeightSource {
 public:
  // std::invalid_argument without .safetensors, std::runtime_error for damaged ones or an index that does not
  // agree with them.
  explicit SafeTensorsWeights(const std::filesystem::path& directory);
  at::Tensor load(const std::string& name, const std::vector<int64_t>& shape) const override;
  at::Tensor load_on(at::Device device, const std::string& name,
                     const std::vector<int64_t>& shape) const override;
  at::Tensor load_part(const std::string& name, const std::vector<int64_t>& shape,
                       int64_t index) const override;
  at::Tensor load_rows(const std::string& name, const std::vector<int64_t>& shape,
                       std::span<const int32_t> rows) const override;
  void check(const std::map<std::string, std::vector<int64_t>>& expected) const override;
  int64_t bytes() const override;
  std::string digest() const override;  // over the digests of config.json and of the shards in name order
  bool has(const std::string& name) const { return find(name) != nullptr; }
  // Whether one is a copy of the other, to the bit; a tensor that is not there differs from none.
  bool same(const std::string& a, const std::string& b) const;
  // Drops the tensors whose names begin with one of these, and says how many there were.
  int64_t leave_out(std::initializer_list<std::string_view> prefixes);
  // That many layers after the decoder's, which predict further tokens, are no surplus.
  void allow_layers_after(int64_t count) { layers_after_ = count; }

 private:
  const Tensor* find(const std::string& name) const;
  const Tensor& need(const std::string& name, const std::vector<int64_t>& shape) const;
  // The scales of an FP8 weight over its rows and columns: (rows, columns) float32 of blocks of `block` each
  // way.
  struct Scales {
    std::vector<float> values;
    int64_t columns = 1, block_rows = 1, block_columns = 1;
  };
  Scales scales_of(const std::string& name, const Tensor& weight) const;
  // The blocks and scales of an MXFP4 tensor of that shape; nullptrs where there are none under that name.
  struct Packed {
    const Tensor *blocks = nullptr, *scales = nullptr;
  };
  Packed packed(const std::string& name, const std::vector<int64_t>& shape) const;
  void convert(const std::string& name, const Tensor& weight, int64_t first_row, int64_t rows,
               float* out) const;

  std::filesystem::path directory_;
  ShardedSafeTensors shards_;
  std::map<std::string, const Tensor*> tensors_;  // by name, prefix taken off
  int64_t layers_after_ = 0;
  std::string prefix_;  // before "model.embed_tokens.weight"
};

}  // namespace oscar
