// Attention of a decoder layer: projections, norms, rotary positions, exact attention or what takes its
// place.
#include <ATen/ATen.h>

#include "kernels/gram.h"
#include "libdump/device_layers.h"
#include "libdump/models/mixer.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

// What `attend` makes of a sequence; rounded as exact attention is.
AttentionOutput attended(const AttentionRows& rows, const Attend& attend, Precision precision) {
  AttentionOutput out{at::empty({rows.tokens, rows.shape->q_heads, rows.shape->dim_v}, at::kFloat), {}};
  attend(rows, out.o.mutable_data_ptr<float>());
  round_to(precision, out.o);
  return out;
}

class Attention : public Mixer {
 public:
  Attention(const LayerParts& parts, std::shared_ptr<const RopeTable> rope, Precision precision)
      : spec_(parts.spec()), layer_(parts.layer()), rope_(std::move(rope)), precision_(precision) {
    if (layer_.qk_norm != QkNorm::None) {
      q_norm_ = parts.norm("self_attn.q_norm");
      k_norm_ = parts.norm("self_attn.k_norm");
    }
    using Names = std::vector<std::string>;
    if (layer_.output_gate)
      qkv_ = gated_projection(parts);
    else
      qkv_ = parts.linear(spec_.fused_qkv ? Names{"self_attn.qkv_proj"}
                                          : Names{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                          precision);
    const at::Tensor out = parts.load("self_attn.o_proj.weight");
    set_output_metrics(out);
    out_ = Linear(out, precision, layer_.out_bias ? parts.load("self_attn.o_proj.bias") : at::Tensor());
  }

  at::Tensor operator()(const at::Tensor& x, const MixerCall& call) const override {
    const int64_t tokens = x.size(0), o_width = int64_t{layer_.attention.q_heads} * layer_.attention.dim_v;
    const at::Tensor qkv = qkv_(x);
    at::Tensor o = qkv.is_cpu() ? attention(qkv, call) : attention_on_device(qkv, call);
    o = o.view({tokens, o_width});
    if (layer_.output_gate) o = o * at::sigmoid(qkv.narrow(1, qkv.size(1) - o_width, o_width).to(at::kFloat));
    return out_(activation(std::move(o), precision_));
  }

  OutputMetrics output_metrics() const override { return output_metrics_; }

 private:
  // q_proj holds the query and the gate of a head side by side: rows of q, k, v, and all gates.
  Linear gated_projection(const LayerParts& parts) const {
    const auto rows = [&](const char* kind) {
      const int64_t d = layer_.attention.dim_k;
      const at::Tensor both = parts.load(std::string("self_attn.q_proj") + kind);
      const at::Tensor heads = both.view({layer_.attention.q_heads, 2, d, -1});
      const auto part = [&](int64_t which) {
        const at::Tensor one = heads.select(1, which).reshape({both.size(0) / 2, -1});
        return both.dim() == 1 ? one.view({-1}) : one;
      };
      return at::cat({part(0), parts.load(std::string("self_attn.k_proj") + kind),
                      parts.load(std::string("self_attn.v_proj") + kind), part(1)});
    };
    return {rows(".weight"), precision_, layer_.qkv_bias ? rows(".bias") : at::Tensor()};
  }
  int64_t q_width() const { return int64_t{layer_.attention.q_heads} * layer_.attention.dim_k; }
  int64_t k_width() const { return int64_t{layer_.attention.kv_heads} * layer_.attention.dim_k; }

  // (T, Hq, Dv) of rows q, k, v.
  at::Tensor attention(const at::Tensor& qkv, const MixerCall& call) const {
    const LayerShape& shape = layer_.attention;
    const int64_t tokens = qkv.size(0), v_width = int64_t{shape.kv_heads} * shape.dim_v;
    at::Tensor q = positioned(qkv, 0, shape.q_heads, q_norm_, call.position);
    at::Tensor k = positioned(qkv, q_width(), shape.kv_heads, k_norm_, call.position);
    at::Tensor v =
        at::empty({tokens, v_width}, at::kFloat).copy_(qkv.narrow(1, q_width() + k_width(), v_width));
    for (at::Tensor* rows : {&q, &k, &v}) round_to(precision_, *rows);
    AttentionRows rows{.shape = &shape,
                       .tokens = tokens,
                       .q = q.const_data_ptr<float>(),
                       .k = k.const_data_ptr<float>(),
                       .v = v.const_data_ptr<float>(),
                       .o = nullptr,
                       .lse = nullptr};
    const AttentionOutput out = call.attend
                                    ? attended(rows, call.attend, precision_)
                                    : causal_attention(rows.q, rows.k, rows.v, tokens, shape, precision_);
    rows.o = out.o.const_data_ptr<float>();
    if (!call.attend) rows.lse = out.lse.const_data_ptr<float>();
    rows.hidden = call.hidden.const_data_ptr<float>();
    rows.hidden_width = call.hidden.size(1);
    if (call.sink) call.sink(rows);
    return out.o;
  }
  at::Tensor attention_on_device(const at::Tensor& qkv, const MixerCall& call) const {
    const LayerShape& shape = layer_.attention;
    if (call.position != 0) throw std::logic_error("attention on a GPU: of whole sequences");
    auto rows = on_device::positioned(qkv,
                                      {{0, shape.q_heads, shape.dim_k, q_norm_, rope_.get()},
                                       {q_width(), shape.kv_heads, shape.dim_k, k_norm_, rope_.get()},
                                       {q_width() + k_width(), shape.kv_heads, shape.dim_v, {}, nullptr}},
                                      spec_.config.norm_eps, 0);
    const int64_t tokens = qkv.size(0);
    const AttentionOutput out =
        call.attend ? AttentionOutput{at::empty({tokens, shape.q_heads, shape.dim_v}, rows[0].options()), {}}
                    : on_device::causal_attention(rows[0], rows[1], rows[2], shape);
    const DeviceRows device{rows[0], rows[1], rows[2], out.o, out.lse, call.hidden, metric_};
    AttentionRows all{};
    all.shape = &shape;
    all.tokens = tokens;
    all.device = &device;
    if (call.attend) call.attend(all, nullptr);
    if (call.sink) call.sink(all);
    return out.o;
  }

  // Heads from `column` on, normalised where the family does that, and turned to their positions.
  at::Tensor positioned(const at::Tensor& qkv, int64_t column, int heads, const at::Tensor& norm,
                        int64_t position) const {
    const int64_t tokens = qkv.size(0), d = layer_.attention.dim_k, width = heads * d;
    at::Tensor from = qkv;
    if (norm.defined()) {
      from = qkv.narrow(1, column, width).to(at::kFloat).contiguous();
      if (layer_.qk_norm == QkNorm::Head) from = from.view({tokens * heads, d});
      from = rms_norm(from, norm, spec_.config.norm_eps).view({tokens, width});
      column = 0;
    }
    at::Tensor out = at::empty({tokens, width}, at::kFloat);
    if (rope_)
      rope_->apply(from, column, heads, static_cast<int>(d), position, out.mutable_data_ptr<float>());
    else
      out.copy_(from.narrow(1, column, width));
    return out;
  }
  void set_output_metrics(const at::Tensor& out) {
    const int64_t d = layer_.attention.dim_v, heads = layer_.attention.q_heads;
    std::vector<Matrix> metrics(static_cast<size_t>(heads), Matrix::Zero(d, d));
    at::Tensor grams;  // (Hq, Dv, Dv)
    if (!out.is_cpu()) {
      const at::Tensor of_head = out.view({-1, heads, d}).permute({1, 0, 2}).to(at::kDouble);
      grams = at::bmm(of_head.transpose(1, 2), of_head);
      metric_ = grams.to(at::kFloat);
      grams = to_cpu(grams);
    }
    for (int64_t j = 0; j < heads; ++j) {
      double* to = metrics[static_cast<size_t>(j)].data();
      if (grams.defined())
        std::copy_n(grams.const_data_ptr<double>() + j * d * d, d * d, to);
      else
        add_gram(out.const_data_ptr<float>() + j * d, heads * d, nullptr, out.size(0), static_cast<int>(d),
                 to);
    }
    output_metrics_ = std::make_shared<const std::vector<Matrix>>(std::move(metrics));
  }

  const TransformerSpec& spec_;
  const LayerSpec& layer_;
  std::shared_ptr<const RopeTable> rope_;
  Precision precision_;
  at::Tensor q_norm_, k_norm_;  // undefined: none
  Linear qkv_, out_;
  OutputMetrics output_metrics_;
  at::Tensor metric_;  // on a GPU, the same in float32
};

}  // namespace

std::unique_ptr<Mixer> make_attention(const LayerParts& parts, std::shared_ptr<const RopeTable> rope,
                                      Precision precision) {
  return std::make_unique<Attention>(parts, std::move(rope), precision);
}

}  // namespace oscar
