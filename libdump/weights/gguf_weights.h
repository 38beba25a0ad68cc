// The tensors of a GGUF file as a WeightSource, under the names of a Hugging Face checkpoint. Dims of 1 are not
// compared: converters squeeze them.
#pragma once
#include <memory>

#include "formats/gguf.h"
#include "libdump/weights/weight_source.h"

namespace oscar {

struct GgufName {
  std::string name;  // in the file
  // Rows (or, of a bias, elements) of so many heads are stored with the rotary halves interleaved: row 2i of
  // a head is the i-th of its first half, row 2i + 1 the i-th of the second. load() puts them one after the
  // other. 0: as they are.
  int64_t interleaved_heads = 0;
  bool negative_exponential = false;  // stored as -e^x; load() takes the logarithm
};

class GgufWeights : public WeightSource {
 public:
  GgufWeights(std::shared_ptr<const GgufFile> file, std::map<std::string, GgufName> names)
      : file_(std::move(file)), names_(std::move(names)) {}
  at::Tensor load(const std::string& name, const std::vector<int64_t>& shape) const override;
  at::Tensor load_part(const std::string& name, const std::vector<int64_t>& shape,
                       int64_t index) const override;
  at::Tensor load_rows(const std::string& name, const std::vector<int64_t>& shape,
                       std::span<const int32_t> rows) const override;
  void check(const std::map<std::string, std::vector<int64_t>>& expected) const override;
  int64_t bytes() const override;
  std::string digest() const override;
  // Tensors of the layers first to last - 1, which predict further tokens, are no surplus.
  void allow_layers(int64_t first, int64_t last) { first_after_ = first, last_after_ = last; }

 private:
  const GgufName& name_of(const std::string& name) const;
  // The tensor, or what load() would throw for its name, shape and type; reads none of its values.
  const GgufTensor& find(const std::string& name, const std::vector<int64_t>& shape) const;

  std::shared_ptr<const GgufFile> file_;
  std::map<std::string, GgufName> names_;
  int64_t first_after_ = 0, last_after_ = 0;
};

}  // namespace oscar
