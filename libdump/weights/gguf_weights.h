// The tensors of a GGUF file as a WeightSource.
#pragma once
#include <memory>

#include "formats/gguf.h"
#include "libdump/weights/weight_source.h"

namespace oscar {

class GgufWeights : public WeightSource {
 public:
  explicit GgufWeights(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {}
  at::Tensor load(const std::string& name, const std::vector<int64_t>& shape) const override;
  at::Tensor load_rows(const std::string& name, const std::vector<int64_t>& shape,
                       std::span<const int32_t> rows) const override;
  int64_t bytes() const override;
  std::string digest() const override;
  // The tensor, or what load() would throw for its name, shape and type; reads none of its values.
  const GgufTensor& find(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  std::shared_ptr<const GgufFile> file_;
};

}  // namespace oscar
