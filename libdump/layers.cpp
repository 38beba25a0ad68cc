#include "libdump/layers.h"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>

#include "formats/dtype.h"
#include "formats/error.h"
#include "kernels/cpu.h"

namespace oscar {

void round_to_bf16(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    values[i] = std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  }
}

at::Tensor activation(at::Tensor rows, Precision precision) {
  if (precision == Precision::Float32) return rows;
  // Without these instructions LibTorch converts inside every product and runs five times slower than float32.
  if (native_bf16()) return rows.to(at::kBFloat16);
  round_to_bf16(rows.mutable_data_ptr<float>(), rows.numel());
  return rows;
}

Linear::Linear(const at::Tensor& weight, Precision precision) : weight_(activation(weight, precision)) {}

at::Tensor Linear::operator()(const at::Tensor& x) const { return at::linear(x, weight_); }

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t rows = x.size(0), columns = x.size(1);
  at::Tensor out = at::empty_like(x);
  const float* w = weight.const_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x.const_data_ptr<float>() + r * columns;
    float* to = out.mutable_data_ptr<float>() + r * columns;
    float lanes[16] = {};
    int64_t c = 0;
    for (; c + 16 <= columns; c += 16) {
      for (int i = 0; i < 16; ++i) lanes[i] += in[c + i] * in[c + i];
    }
    double sum = 0;
    for (; c < columns; ++c) sum += double(in[c]) * in[c];
    for (const float lane : lanes) sum += lane;
    const auto inverse = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(columns) + eps));
    for (c = 0; c < columns; ++c) to[c] = in[c] * inverse * w[c];
  }
  return out;
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  at::Tensor gate = at::silu(gate_up.narrow(1, 0, width));
  return gate.mul_(gate_up.narrow(1, width, width));
}

RopeTable::RopeTable(const RopeConfig& config, int64_t positions) : half_(config.dim / 2) {
  cos_.resize(static_cast<size_t>(positions) * static_cast<size_t>(half_));
  sin_.resize(cos_.size());
  for (int i = 0; i < half_; ++i) {
    const double frequency = std::pow(config.base, -2.0 * i / config.dim);
    for (int64_t t = 0; t < positions; ++t) {
      // float32 angles: what every engine computes, and what the model was trained with.
      const auto angle = static_cast<float>(t) * static_cast<float>(frequency);
      cos_[static_cast<size_t>(t * half_ + i)] = std::cos(angle);
      sin_[static_cast<size_t>(t * half_ + i)] = std::sin(angle);
    }
  }
}

namespace {
inline float as_float(float x) { return x; }
inline float as_float(c10::BFloat16 x) { return static_cast<float>(x); }

template <typename T>
void rotate(const T* in, int64_t in_stride, int64_t tokens, int heads, int head_dim, int half, const float* cos, const float* sin,
            float* out) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* c = cos + t * half;
    const float* s = sin + t * half;
    for (int h = 0; h < heads; ++h) {
      const T* x = in + t * in_stride + h * head_dim;
      float* y = out + (t * heads + h) * head_dim;
      for (int i = 0; i < half; ++i) {
        const float a = as_float(x[i]), b = as_float(x[i + half]);
        y[i] = a * c[i] - b * s[i];
        y[i + half] = b * c[i] + a * s[i];
      }
      for (int i = 2 * half; i < head_dim; ++i) y[i] = as_float(x[i]);
    }
  }
}
}  // namespace

void RopeTable::apply(const at::Tensor& in, int64_t column, int heads, int head_dim, float* out) const {
  const int64_t tokens = in.size(0);
  if (in.scalar_type() == at::kBFloat16) {
    rotate(in.const_data_ptr<c10::BFloat16>() + column, in.stride(0), tokens, heads, head_dim, half_, cos_.data(), sin_.data(), out);
  } else {
    rotate(in.const_data_ptr<float>() + column, in.stride(0), tokens, heads, head_dim, half_, cos_.data(), sin_.data(), out);
  }
}

AttentionOutput causal_attention(const float* q, const float* k, const float* v, int64_t tokens, const LayerShape& shape,
                                 Precision precision) {
  if (shape.sliding_window != 0 || shape.dim_k != shape.dim_v) throw invalid("layer {}: this attention has no sliding window and K and V of one size", shape.layer);
  const int64_t kv = shape.kv_heads, group = shape.group(), d = shape.dim_k;
  // The batch is the KV heads, so that the heads of a group read one k and v through a stride of zero.
  const auto view = [&](const float* data, int64_t heads, bool shared) {
    at::Tensor rows = at::from_blob(const_cast<float*>(data), {tokens, heads * d}, at::kFloat);
    if (precision == Precision::BFloat16 && native_bf16()) rows = rows.to(at::kBFloat16);
    return shared ? rows.as_strided({kv, group, tokens, d}, {d, 0, heads * d, 1}) : rows.as_strided({kv, group, tokens, d}, {group * d, d, heads * d, 1});
  };
  auto [o, lse] = at::_scaled_dot_product_flash_attention_for_cpu(view(q, shape.q_heads, false), view(k, kv, true), view(v, kv, true),
                                                                  /*dropout_p=*/0.0, /*is_causal=*/true, /*attn_mask=*/{}, shape.scale);
  at::Tensor rows = at::empty({tokens, kv, group, d}, at::kFloat);
  rows.permute({1, 2, 0, 3}).copy_(o);
  if (precision == Precision::BFloat16) round_to_bf16(rows.mutable_data_ptr<float>(), rows.numel());
  return {rows.view({tokens, kv * group, d}), lse.to(at::kFloat).contiguous().view({kv * group, tokens})};
}

}  // namespace oscar
