// What every WeightSource owes its readers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cmath>
#include <string>

#include "formats/error.h"

namespace oscar {

// std::runtime_error naming tensor and element when a float32 value is NaN or infinite.
inline void check_finite(const at::Tensor& tensor, const std::string& name) {
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

}  // namespace oscar
