#include "libdump/layers.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <bit>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/cpu.h"
#include "libdump/device_layers.h"
#include "libdump/torch_device.h"

namespace oscar {

at::ScalarType scalar_type(Precision precision) {
  return precision == Precision::Float32    ? at::kFloat
         : precision == Precision::BFloat16 ? at::kBFloat16
                                            : at::kHalf;
}

void round_to(Precision precision, at::Tensor& rows) {
  if (precision == Precision::Float32) return;
  if (precision == Precision::Float16) {
    rows.copy_(rows.to(at::kHalf));
    return;
  }
  auto* values = rows.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    values[i] = std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  }
}

at::Tensor activation(at::Tensor rows, Precision precision) {
  if (precision == Precision::Float32) return rows;
  if (!rows.is_cpu()) return rows.to(scalar_type(precision));
  // Without these instructions LibTorch converts inside every product and runs five times slower than
  // float32; float16 it always does.
  if (precision == Precision::BFloat16 && native_bf16()) return rows.to(at::kBFloat16);
  round_to(precision, rows);
  return rows;
}

Linear::Linear(const at::Tensor& weight, Precision precision, const at::Tensor& bias)
    : weight_(activation(weight, precision)) {
  if (bias.defined()) bias_ = bias.to(weight_.scalar_type());
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return bias_.defined() ? at::linear(x, weight_, bias_) : at::linear(x, weight_);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!x.is_cpu()) return at::rms_norm(x, {x.size(1)}, weight, eps);
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

at::Tensor normed_activation(const at::Tensor& x, const at::Tensor& weight, double eps, Precision precision) {
  if (!x.is_cpu()) return on_device::normed_activation(x, weight, eps, precision);
  return activation(rms_norm(x, weight, eps), precision);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  if (!gate_up.is_cpu()) return on_device::swiglu(gate_up);
  const int64_t width = gate_up.size(1) / 2;
  at::Tensor gate = at::silu(gate_up.narrow(1, 0, width));
  return gate.mul_(gate_up.narrow(1, width, width));
}

at::Tensor clamped_swiglu(const at::Tensor& gate_up, double alpha, double limit) {
  const int64_t width = gate_up.size(1) / 2;
  at::Tensor gate = gate_up.narrow(1, 0, width).clamp_max(limit);
  gate.mul_(at::sigmoid(gate * alpha));
  return gate.mul_(gate_up.narrow(1, width, width).clamp(-limit, limit).add_(1));
}

at::Tensor geglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  at::Tensor gate = at::gelu(gate_up.narrow(1, 0, width), "tanh");
  return gate.mul_(gate_up.narrow(1, width, width));
}

RopeTable::RopeTable(const RopeConfig& config, int64_t positions, at::Device device)
    : config_(config), device_(device) {
  usual_ = angles(0, positions, 1);
  if (config.scaling == "longrope" && config.stretched(positions)) long_ = angles(0, positions, positions);
  if (device.is_cpu()) return;
  usual_there_ = there(usual_);
  if (!long_.cos.empty()) long_there_ = there(long_);
}

std::pair<at::Tensor, at::Tensor> RopeTable::there(const Angles& table) const {
  const auto copy = [&](const std::vector<float>& values) {
    return to_device(at::tensor(values).view({-1, config_.dim / 2}), device_);
  };
  return {copy(table.cos), copy(table.sin)};
}

std::pair<at::Tensor, at::Tensor> RopeTable::angles_on_device(int64_t position, int64_t rows) const {
  const bool stretched = config_.stretched(position + rows);
  if (stretched && long_.cos.empty()) return there(angles(position, rows, position + rows));
  const auto& [cos, sin] = device_.is_cpu() ? there(stretched ? long_ : usual_)
                           : stretched      ? long_there_
                                            : usual_there_;
  return {cos.narrow(0, position, rows), sin.narrow(0, position, rows)};
}

RopeTable::Angles RopeTable::angles(int64_t first, int64_t count, int64_t length) const {
  const int half = config_.dim / 2;
  const auto frequencies = config_.frequencies(length);
  const auto factor = static_cast<float>(config_.attention_factor);
  Angles result;
  result.cos.resize(static_cast<size_t>(count) * static_cast<size_t>(half));
  result.sin.resize(result.cos.size());
  for (int i = 0; i < half; ++i) {
    const auto frequency = static_cast<float>(frequencies[static_cast<size_t>(i)]);
    for (int64_t t = 0; t < count; ++t) {
      // float32 angles: what every engine computes, and what the model was trained with.
      const float angle = static_cast<float>(first + t) * frequency;
      const auto at = static_cast<size_t>(t * half + i);
      result.cos[at] = std::cos(angle) * factor;
      result.sin[at] = std::sin(angle) * factor;
    }
  }
  return result;
}

at::Tensor Linear::exact(const at::Tensor& x) const {
  if (x.is_cpu() || x.scalar_type() == at::kFloat) return (*this)(x).to(at::kFloat);
  const at::Tensor out = at::mm(x, weight_.t(), at::kFloat);
  return bias_.defined() ? out + bias_ : out;
}

namespace {
inline float as_float(float x) {
  return x;
}
inline float as_float(c10::BFloat16 x) {
  return static_cast<float>(x);
}

// The pair i is at i and i + half, or at 2i and 2i + 1.
template <bool neighbours, typename T>
void rotate(const T* in, int64_t in_stride, int64_t tokens, int heads, int head_dim, int half,
            const float* cos, const float* sin, float* out) {
  for (int64_t t = 0; t < tokens; ++t) {
    const float* c = cos + t * half;
    const float* s = sin + t * half;
    for (int h = 0; h < heads; ++h) {
      const T* x = in + t * in_stride + h * head_dim;
      float* y = out + (t * heads + h) * head_dim;
      for (int i = 0; i < half; ++i) {
        const int first = neighbours ? 2 * i : i, second = neighbours ? 2 * i + 1 : i + half;
        const float a = as_float(x[first]), b = as_float(x[second]);
        y[first] = a * c[i] - b * s[i];
        y[second] = b * c[i] + a * s[i];
      }
      for (int i = 2 * half; i < head_dim; ++i) y[i] = as_float(x[i]);
    }
  }
}
}  // namespace

void RopeTable::apply(const at::Tensor& in, int64_t column, int heads, int head_dim, int64_t position,
                      float* out) const {
  const int64_t tokens = in.size(0);
  const bool stretched = config_.stretched(position + tokens);
  const int half = config_.dim / 2;
  Angles own;  // of this length alone: "dynamic"
  if (stretched && long_.cos.empty()) own = angles(position, tokens, position + tokens);
  const Angles& table = !own.cos.empty() ? own : stretched ? long_ : usual_;
  const int64_t first = own.cos.empty() ? position * half : 0;
  const float *cos = table.cos.data() + first, *sin = table.sin.data() + first;
  const auto turn = [&](const auto* from) {
    (config_.neighbours ? rotate<true, std::remove_cvref_t<decltype(*from)>>
                        : rotate<false, std::remove_cvref_t<decltype(*from)>>)(from + column, in.stride(0),
                                                                               tokens, heads, head_dim, half,
                                                                               cos, sin, out);
  };
  if (in.scalar_type() == at::kBFloat16)
    turn(in.const_data_ptr<c10::BFloat16>());
  else
    turn(in.const_data_ptr<float>());
}

AttentionOutput causal_attention(const float* q, const float* k, const float* v, int64_t tokens,
                                 const LayerShape& shape, Precision precision) {
  AttentionOutput out{at::empty({tokens, shape.q_heads, shape.dim_v}, at::kFloat),
                      at::empty({shape.q_heads, tokens}, at::kFloat)};
  auto* const o = out.o.mutable_data_ptr<float>();
  auto* const lse = out.lse.mutable_data_ptr<float>();
  const int64_t group = shape.group();
  // A thread a KV head where LibTorch may use several; one, where each sequence has its own.
  at::parallel_for(0, shape.kv_heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t h = first; h < last; ++h) {
      AttentionProblem problem{};
      problem.tokens = tokens;
      problem.group = shape.group();
      problem.dim_k = shape.dim_k;
      problem.dim_v = shape.dim_v;
      problem.scale = static_cast<float>(shape.scale);
      problem.sliding_window = shape.sliding_window;
      problem.q = q + h * group * shape.dim_k;
      problem.q_stride = int64_t{shape.q_heads} * shape.dim_k;
      problem.k = k + h * shape.dim_k;
      problem.k_stride = int64_t{shape.kv_heads} * shape.dim_k;
      problem.v = v + h * shape.dim_v;
      problem.v_stride = int64_t{shape.kv_heads} * shape.dim_v;
      problem.o_stride = int64_t{shape.q_heads} * shape.dim_v;
      problem.lse_stride = tokens;
      problem.logit_cap = static_cast<float>(shape.logit_cap);
      problem.sink_logits = shape.sinks_of(static_cast<int>(h));
      causal_attention(problem, o + h * group * shape.dim_v, lse + h * group * tokens);
    }
  });
  round_to(precision, out.o);
  return out;
}

}  // namespace oscar
