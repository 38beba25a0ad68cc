// Gated DeltaNet (arXiv:2412.06464), the layers of Qwen3-Next and Qwen3.5 that keep a state and no cache: a
// short causal convolution, then per value head with state S (Dk, Dv)
//
//   S <- e^g S;  S <- S + k^T beta (v - k S);  o = q S / sqrt(Dk)      q and k of unit length, g = -e^A
//   softplus(a + b)
//
// in float32 whatever the precision of the products, as the references have it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "formats/error.h"
#include "libdump/models/mixer.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

float silu(float x) {
  return x / (1 + std::exp(-x));
}

// One value head over a sequence; strides in floats. state (dim_k, dim_v) begins as zeros.
struct DeltaHead {
  int64_t tokens, dim_k, dim_v;
  const float *q, *k, *v;  // q[t * stride], unit length but for q's scale
  int64_t stride;
  const float *decay, *beta;  // (T)
  float* o;                   // o[t * o_stride]
  int64_t o_stride;
};
void run(const DeltaHead& h, std::vector<float>& state, std::vector<float>& delta) {
  state.assign(static_cast<size_t>(h.dim_k * h.dim_v), 0);
  delta.resize(static_cast<size_t>(h.dim_v));
  for (int64_t t = 0; t < h.tokens; ++t) {
    const float *q = h.q + t * h.stride, *k = h.k + t * h.stride, *v = h.v + t * h.stride;
    float* o = h.o + t * h.o_stride;
    std::fill(delta.begin(), delta.end(), 0.0f);
    for (int64_t i = 0; i < h.dim_k; ++i) {
      float* row = state.data() + i * h.dim_v;
      for (int64_t c = 0; c < h.dim_v; ++c) {
        row[c] *= h.decay[t];
        delta[static_cast<size_t>(c)] += k[i] * row[c];
      }
    }
    for (int64_t c = 0; c < h.dim_v; ++c) {
      auto& d = delta[static_cast<size_t>(c)];
      d = h.beta[t] * (v[c] - d);
      o[c] = 0;
    }
    for (int64_t i = 0; i < h.dim_k; ++i) {
      float* row = state.data() + i * h.dim_v;
      for (int64_t c = 0; c < h.dim_v; ++c) {
        row[c] += k[i] * delta[static_cast<size_t>(c)];
        o[c] += q[i] * row[c];
      }
    }
  }
}

class GatedDelta : public Mixer {
 public:
  GatedDelta(const LayerParts& parts, Precision precision)
      : delta_(parts.layer().delta),
        layer_(parts.layer().attention.layer),
        eps_(parts.spec().config.norm_eps),
        precision_(precision) {
    in_ = Linear(in_projection(parts), precision);
    convolution_ =
        parts.load("linear_attn.conv1d.weight").cpu().view({delta_.channels(), delta_.kernel}).contiguous();
    rate_ = parts.load("linear_attn.A_log").cpu().exp_();
    bias_ = parts.load("linear_attn.dt_bias").cpu();
    norm_ = parts.load("linear_attn.norm.weight").cpu();  // as stored: no offset
    out_ = parts.linear({"linear_attn.out_proj"}, precision);
  }

  at::Tensor operator()(const at::Tensor& x, const MixerCall& call) const override {
    if (call.position != 0)
      throw invalid(
          "layer {} keeps a state instead of a cache (gated delta rule): it runs whole sequences only",
          layer_);
    const int64_t tokens = x.size(0);
    const at::Tensor in = to_cpu(in_.exact(x).contiguous());  // the recurrence is the CPU's
    const at::Tensor mixed = convolved(in);
    at::Tensor out = at::empty({tokens, delta_.v_heads * delta_.dim_v}, at::kFloat);
    at::parallel_for(0, delta_.v_heads, 1, [&](int64_t first, int64_t last) {
      std::vector<float> state, change;
      for (int64_t h = first; h < last; ++h) run_head(in, mixed, h, out, state, change);
    });
    return out_.exact(activation(to_device(out, x.device()), precision_));
  }

 private:
  // Rows in the order q, k, v, z (all heads each), b, a.
  at::Tensor in_projection(const LayerParts& parts) const {
    const int64_t values = delta_.v_heads / delta_.k_heads, width = values * delta_.dim_v;
    std::vector<at::Tensor> rows;
    const auto add = [&](const char* name) { rows.push_back(parts.load(name)); };
    // A tensor that has the parts of a key head, and of its value heads, side by side.
    const auto add_parts = [&](const char* name, std::initializer_list<int64_t> sizes) {
      const at::Tensor weight = parts.load(name).view({delta_.k_heads, -1, parts.spec().config.hidden});
      int64_t at = 0;
      for (const int64_t size : sizes) {
        rows.push_back(weight.narrow(1, at, size).flatten(0, 1));
        at += size;
      }
    };
    if (delta_.fused) {
      add_parts("linear_attn.in_proj_qkvz.weight", {delta_.dim_k, delta_.dim_k, width, width});
    } else {
      add("linear_attn.in_proj_qkv.weight");
      add("linear_attn.in_proj_z.weight");
    }
    if (delta_.fused_gates) {
      add_parts("linear_attn.in_proj_ba.weight", {values, values});
    } else {
      add("linear_attn.in_proj_b.weight");
      add("linear_attn.in_proj_a.weight");
    }
    return at::cat(rows);
  }

  // silu of the causal convolution over time of q, k and v, (T, channels).
  at::Tensor convolved(const at::Tensor& in) const {
    const int64_t tokens = in.size(0), width = in.size(1), channels = delta_.channels();
    at::Tensor out = at::zeros({tokens, channels}, at::kFloat);
    const at::Tensor taps = convolution_.t().contiguous();  // (kernel, channels)
    for (int64_t t = 0; t < tokens; ++t) {
      float* row = out.mutable_data_ptr<float>() + t * channels;
      for (int64_t j = std::max<int64_t>(0, delta_.kernel - 1 - t); j < delta_.kernel; ++j) {
        const float* from = in.const_data_ptr<float>() + (t - delta_.kernel + 1 + j) * width;
        const float* tap = taps.const_data_ptr<float>() + j * channels;
        for (int64_t c = 0; c < channels; ++c) row[c] += tap[c] * from[c];
      }
      for (int64_t c = 0; c < channels; ++c) row[c] = silu(row[c]);
    }
    normalise_heads(out);
    return out;
  }
  // q and k to unit length, q over sqrt(Dk) too.
  void normalise_heads(at::Tensor& mixed) const {
    const double scale = 1 / std::sqrt(static_cast<double>(delta_.dim_k));
    for (int64_t t = 0; t < mixed.size(0); ++t) {
      for (int64_t h = 0; h < 2 * delta_.k_heads; ++h) {
        float* row = mixed.mutable_data_ptr<float>() + t * mixed.size(1) + h * delta_.dim_k;
        double power = 1e-6;
        for (int64_t i = 0; i < delta_.dim_k; ++i) power += static_cast<double>(row[i]) * row[i];
        const auto factor = static_cast<float>((h < delta_.k_heads ? scale : 1) / std::sqrt(power));
        for (int64_t i = 0; i < delta_.dim_k; ++i) row[i] *= factor;
      }
    }
  }

  // out (T, v_heads, dim_v): normalised per head, then gated by silu(z).
  void run_head(const at::Tensor& in, const at::Tensor& mixed, int64_t head, at::Tensor& out,
                std::vector<float>& state, std::vector<float>& change) const {
    const int64_t tokens = in.size(0), width = in.size(1), dim = delta_.dim_v, channels = delta_.channels(),
                  key_head = delta_.key_head(head), keys = delta_.k_heads * delta_.dim_k;
    const float* z = in.const_data_ptr<float>() + channels + head * dim;
    const float* gates = in.const_data_ptr<float>() + channels + delta_.v_heads * dim + head;  // b, then a
    std::vector<float> decay(static_cast<size_t>(tokens)), beta(decay.size());
    for (int64_t t = 0; t < tokens; ++t) {
      const float step = gates[t * width + delta_.v_heads] + bias_.const_data_ptr<float>()[head];
      const float softplus = step > 20 ? step : std::log1p(std::exp(step));
      decay[static_cast<size_t>(t)] = std::exp(-rate_.const_data_ptr<float>()[head] * softplus);
      beta[static_cast<size_t>(t)] = 1 / (1 + std::exp(-gates[t * width]));
    }
    const float* q = mixed.const_data_ptr<float>() + key_head * delta_.dim_k;
    float* o = out.mutable_data_ptr<float>() + head * dim;
    const int64_t o_stride = delta_.v_heads * dim;
    run({tokens, delta_.dim_k, dim, q, q + keys, mixed.const_data_ptr<float>() + 2 * keys + head * dim,
         channels, decay.data(), beta.data(), o, o_stride},
        state, change);
    const float* weight = norm_.const_data_ptr<float>();
    for (int64_t t = 0; t < tokens; ++t, o += o_stride) {
      double power = 0;
      for (int64_t c = 0; c < dim; ++c) power += static_cast<double>(o[c]) * o[c];
      const auto inverse = static_cast<float>(1 / std::sqrt(power / static_cast<double>(dim) + eps_));
      for (int64_t c = 0; c < dim; ++c) o[c] *= inverse * weight[c] * silu(z[t * width + c]);
    }
  }

  const DeltaSpec delta_;
  int layer_;
  double eps_;
  Precision precision_;
  Linear in_, out_;
  at::Tensor convolution_, rate_, bias_, norm_;  // (channels, kernel), (v_heads), (v_heads), (dim_v)
};

}  // namespace

std::unique_ptr<Mixer> make_gated_delta(const LayerParts& parts, Precision precision) {
  return std::make_unique<GatedDelta>(parts, precision);
}

}  // namespace oscar
