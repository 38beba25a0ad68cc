// The pieces every decoder family is made of, on the CPU and, by LibTorch's operations and our kernels
// (device_layers.h), on a GPU. Activations between them are float32 rows; in a run of 16 bits whatever enters
// a matrix product, and q, k, v and o, are rounded first.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "libdump/model_config.h"
#include "libdump/precision.h"

namespace oscar {

// y = x W^T. The weight is held in the precision of the products.
class Linear {
 public:
  Linear() = default;
  // (out, in) float32, and (out) where there is a bias.
  Linear(const at::Tensor& weight, Precision precision, const at::Tensor& bias = {});
  at::Tensor operator()(
      const at::Tensor& x) const;  // x (T, in) from activation(); (T, out) float32 or rounded as x
  at::Tensor exact(const at::Tensor& x) const;  // float32, without that rounding on a GPU

 private:
  at::Tensor weight_, bias_;
};

// What enters a Linear: rows of float32 (or rounded already), rounded where the precision says so, as its 16
// bits on a GPU and where the CPU multiplies bfloat16 natively. Takes the tensor over.
at::Tensor activation(at::Tensor rows, Precision precision);
void round_to(Precision precision, at::Tensor& rows);  // float32 on the CPU, in place
at::ScalarType scalar_type(Precision precision);

// x / rms(x) * weight, (T, hidden) float32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// activation() of it.
at::Tensor normed_activation(const at::Tensor& x, const at::Tensor& weight, double eps, Precision precision);
// silu(gate) * up of rows [gate | up], (T, 2 F) -> (T, F) of the same type.
at::Tensor swiglu(const at::Tensor& gate_up);
// min(gate, limit) sigmoid(alpha gate) (clamp(up, -limit, limit) + 1) of the same rows: gpt-oss.
at::Tensor clamped_swiglu(const at::Tensor& gate_up, double alpha, double limit);
// The same as swiglu with gelu, in its tanh form.
at::Tensor geglu(const at::Tensor& gate_up);

// cos and sin of every position and pair. A scaling that looks at the sequence's length
// (RopeConfig::stretched) takes that of the rows so far: as transformers does it, what was rotated before
// stays.
class RopeTable {
 public:
  RopeTable(const RopeConfig& config, int64_t positions, at::Device device = at::kCPU);
  // Rotates the first `dim` elements of a head in halves (GPT-NeoX order) or, where the configuration says
  // so, neighbours: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s). Heads are side by side from `column` of `in` on,
  // float32 or bfloat16; row r is at `position` + r. `out` (T, heads, D) is float32.
  void apply(const at::Tensor& in, int64_t column, int heads, int head_dim, int64_t position,
             float* out) const;
  // cos and sin, (rows, dim / 2) each, of rows from `position` on, on the device.
  std::pair<at::Tensor, at::Tensor> angles_on_device(int64_t position, int64_t rows) const;
  const RopeConfig& config() const { return config_; }

 private:
  struct Angles {  // (positions, dim / 2)
    std::vector<float> cos, sin;
  };
  Angles angles(int64_t first, int64_t count, int64_t length) const;
  std::pair<at::Tensor, at::Tensor> there(const Angles& table) const;

  RopeConfig config_;
  at::Device device_;
  std::pair<at::Tensor, at::Tensor> usual_there_, long_there_;  // on a GPU
  Angles usual_, long_;  // long_: of stretched sequences, where they all have the same
};

// Causal attention of one sequence (kernels/attention.h), float32 products in either precision. o (T, Hq, Dv)
// and lse (Hq, T) are float32; o is rounded in a run of 16 bits.
struct AttentionOutput {
  at::Tensor o, lse;
};
AttentionOutput causal_attention(const float* q, const float* k, const float* v, int64_t tokens,
                                 const LayerShape& shape, Precision precision);

}  // namespace oscar
