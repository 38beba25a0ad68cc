#include "libdump/models/transformer.h"

#include <ATen/ATen.h>

#include <mutex>

#include "formats/error.h"
#include "kernels/gram.h"
#include "libdump/models/layer_parts.h"

namespace oscar {
namespace {

// What `attend` makes of a sequence; rounded as exact attention is.
AttentionOutput attended(const AttentionRows& rows, const Attend& attend, Precision precision) {
  AttentionOutput out{at::empty({rows.tokens, rows.shape->q_heads, rows.shape->dim_v}, at::kFloat), {}};
  attend(rows, out.o.mutable_data_ptr<float>());
  if (precision == Precision::BFloat16) round_to_bf16(out.o.mutable_data_ptr<float>(), out.o.numel());
  return out;
}

class TransformerLayer : public DecoderLayer {
 public:
  TransformerLayer(const TransformerSpec& spec, const WeightSource& weights, int index,
                   std::shared_ptr<const RopeTable> rope, Precision precision)
      : spec_(spec),
        layer_(spec.layers.at(static_cast<size_t>(index))),
        rope_(std::move(rope)),
        precision_(precision) {
    const LayerParts parts(spec, weights, index);
    before_attention_ = parts.norm(spec.before_attention);
    after_attention_ = parts.norm(spec.after_attention);
    before_mlp_ = parts.norm(spec.before_mlp);
    after_mlp_ = parts.norm(spec.after_mlp);
    if (layer_.qk_norm != QkNorm::None) {
      q_norm_ = parts.norm("self_attn.q_norm");
      k_norm_ = parts.norm("self_attn.k_norm");
    }
    using Names = std::vector<std::string>;
    qkv_ = parts.linear(spec.fused_qkv ? Names{"self_attn.qkv_proj"}
                                       : Names{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                        precision);
    mlp_ = make_mlp(parts, precision);
    const at::Tensor out = parts.load("self_attn.o_proj.weight");
    set_output_metrics(out);
    out_ = Linear(out, precision, layer_.out_bias ? parts.load("self_attn.o_proj.bias") : at::Tensor());
  }

  void forward(at::Tensor& hidden, const std::function<void(const AttentionRows&)>& sink,
               const Attend& attend, int64_t position) const override {
    const LayerShape& shape = layer_.attention;
    const int64_t tokens = hidden.size(0), q_width = int64_t{shape.q_heads} * shape.dim_k,
                  k_width = int64_t{shape.kv_heads} * shape.dim_k,
                  v_width = int64_t{shape.kv_heads} * shape.dim_v;
    const at::Tensor qkv = qkv_(activation(normed(hidden, before_attention_), precision_));
    at::Tensor q = positioned(qkv, 0, shape.q_heads, q_norm_, position);
    at::Tensor k = positioned(qkv, q_width, shape.kv_heads, k_norm_, position);
    at::Tensor v = at::empty({tokens, v_width}, at::kFloat).copy_(qkv.narrow(1, q_width + k_width, v_width));
    if (precision_ == Precision::BFloat16) {
      for (at::Tensor* rows : {&q, &k, &v}) round_to_bf16(rows->mutable_data_ptr<float>(), rows->numel());
    }
    AttentionRows rows{.shape = &shape,
                       .tokens = tokens,
                       .q = q.const_data_ptr<float>(),
                       .k = k.const_data_ptr<float>(),
                       .v = v.const_data_ptr<float>(),
                       .o = nullptr,
                       .lse = nullptr};
    const AttentionOutput attention =
        attend ? attended(rows, attend, precision_)
               : causal_attention(rows.q, rows.k, rows.v, tokens, shape, precision_);
    rows.o = attention.o.const_data_ptr<float>();
    if (!attend) rows.lse = attention.lse.const_data_ptr<float>();
    rows.hidden = hidden.const_data_ptr<float>();
    rows.hidden_width = hidden.size(1);
    if (sink) sink(rows);
    add(hidden,
        out_(activation(attention.o.view({tokens, int64_t{shape.q_heads} * shape.dim_v}), precision_)),
        after_attention_);
    add(hidden, (*mlp_)(normed(hidden, before_mlp_)), after_mlp_);
  }

  std::vector<Matrix> output_metrics() const override { return output_metrics_; }

 private:
  at::Tensor normed(const at::Tensor& x, const at::Tensor& weight) const {
    return weight.defined() ? rms_norm(x, weight, spec_.config.norm_eps) : x.clone();
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
  void add(at::Tensor& hidden, at::Tensor update, const at::Tensor& norm) const {
    if (norm.defined()) update = rms_norm(update.to(at::kFloat), norm, spec_.config.norm_eps);
    hidden.add_(update, spec_.residual_scale);
  }
  void set_output_metrics(const at::Tensor& out) {
    const int64_t d = layer_.attention.dim_v, heads = layer_.attention.q_heads;
    output_metrics_.assign(static_cast<size_t>(heads), Matrix::Zero(d, d));
    for (int64_t j = 0; j < heads; ++j) {
      add_gram(out.const_data_ptr<float>() + j * d, heads * d, nullptr, out.size(0), static_cast<int>(d),
               output_metrics_[static_cast<size_t>(j)].data());
    }
  }

  const TransformerSpec& spec_;
  const LayerSpec& layer_;
  std::shared_ptr<const RopeTable> rope_;  // nullptr: no positions
  Precision precision_;
  at::Tensor before_attention_, after_attention_, before_mlp_, after_mlp_, q_norm_,
      k_norm_;  // undefined: none
  Linear qkv_, out_;
  std::unique_ptr<Mlp> mlp_;
  std::vector<Matrix> output_metrics_;
};

class Transformer : public Model {
 public:
  Transformer(TransformerSpec spec, std::unique_ptr<WeightSource> weights,
              std::function<std::unique_ptr<Tokenizer>()> tokenizer, Precision precision)
      : spec_(std::move(spec)),
        weights_(std::move(weights)),
        tokenizer_(std::move(tokenizer)),
        precision_(precision) {}

  const ModelConfig& config() const override { return spec_.config; }
  const WeightSource& weights() const override { return *weights_; }
  std::unique_ptr<Tokenizer> tokenizer() const override { return tokenizer_(); }
  void reserve_positions(int64_t positions) override {
    if (config().context > 0 && positions > config().context) {
      throw invalid("{}: sequences of {} tokens exceed the model's context of {}: lower --seq-len",
                    config().path, positions, config().context);
    }
    ropes_.clear();
    for (const auto& rope : config().ropes)
      ropes_.push_back(std::make_shared<const RopeTable>(rope, positions));
  }
  at::Tensor embed(std::span<const int32_t> ids) const override {
    at::Tensor rows =
        weights_->load_rows("model.embed_tokens.weight", {config().vocabulary, config().hidden}, ids);
    return spec_.embedding_scale == 1 ? rows : rows.mul_(spec_.embedding_scale);
  }
  std::unique_ptr<DecoderLayer> load_layer(int layer) const override {
    const int rope = spec_.layers.at(static_cast<size_t>(layer)).rope;
    return std::make_unique<TransformerLayer>(
        spec_, *weights_, layer, rope < 0 ? nullptr : ropes_.at(static_cast<size_t>(rope)), precision_);
  }
  at::Tensor logits(const at::Tensor& hidden) const override {
    std::call_once(head_once_, [&] {
      head_ = weights_->load(config().tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                             {config().vocabulary, config().hidden});
      norm_ = weights_->load("model.norm.weight", {config().hidden}) + spec_.norm_offset;
    });
    at::Tensor logits = at::linear(rms_norm(hidden, norm_, config().norm_eps), head_);
    return spec_.logit_scale == 1 ? logits : logits.mul_(spec_.logit_scale);
  }

 private:
  TransformerSpec spec_;
  std::unique_ptr<WeightSource> weights_;
  std::function<std::unique_ptr<Tokenizer>()> tokenizer_;
  Precision precision_;
  std::vector<std::shared_ptr<const RopeTable>> ropes_;
  mutable std::once_flag head_once_;
  mutable at::Tensor head_, norm_;
};

}  // namespace

std::unique_ptr<Model> make_transformer(TransformerSpec spec, std::unique_ptr<WeightSource> weights,
                                        std::function<std::unique_ptr<Tokenizer>()> tokenizer,
                                        Precision precision) {
  weights->check(expected_tensors(spec));
  return std::make_unique<Transformer>(std::move(spec), std::move(weights), std::move(tokenizer), precision);
}

}  // namespace oscar
