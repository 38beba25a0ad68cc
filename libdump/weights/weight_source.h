// Named weights in float32, dequantised one tensor at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace oscar {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // (shape) float32, freshly allocated. Missing tensor, other shape, unsupported block type, NaN or infinity:
  // an error that names tensor, expected and found.
  virtual at::Tensor load(const std::string& name, const std::vector<int64_t>& shape) const = 0;
  // load() on that device: what is stored in 16 bits travels so.
  virtual at::Tensor load_on(at::Device device, const std::string& name,
                             const std::vector<int64_t>& shape) const;
  // The `index`-th part of a tensor of that shape along its first dimension, (shape[1:]) float32: experts are
  // stored as one tensor and read one at a time.
  virtual at::Tensor load_part(const std::string& name, const std::vector<int64_t>& shape,
                               int64_t index) const = 0;
  // The given rows of a matrix of that shape: an embedding is never dequantised whole.
  virtual at::Tensor load_rows(const std::string& name, const std::vector<int64_t>& shape,
                               std::span<const int32_t> rows) const = 0;
  // The checkpoint holds exactly these tensors, or an error with the names of those that are missing, left
  // over or of another shape or type; reads no values.
  virtual void check(const std::map<std::string, std::vector<int64_t>>& expected) const = 0;
  virtual int64_t bytes() const = 0;       // of the checkpoint
  virtual std::string digest() const = 0;  // sha256 of the checkpoint's bytes; reads all of it
};

}  // namespace oscar
