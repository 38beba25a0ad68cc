#include "libdump/models/transformer.h"

#include <ATen/ATen.h>

#include <mutex>

#include "formats/error.h"
#include "libdump/models/mixer.h"
#include "libdump/torch_device.h"

namespace oscar {
namespace {

class TransformerLayer : public DecoderLayer {
 public:
  TransformerLayer(const TransformerSpec& spec, const WeightSource& weights, int index,
                   std::shared_ptr<const RopeTable> rope, Precision precision, at::Device device)
      : spec_(spec), precision_(precision) {
    const LayerParts parts(spec, weights, index, device);
    before_attention_ = parts.norm(spec.before_attention);
    after_attention_ = parts.norm(spec.after_attention);
    before_mlp_ = parts.norm(spec.before_mlp);
    after_mlp_ = parts.norm(spec.after_mlp);
    mixer_ = parts.layer().recurrent() ? make_gated_delta(parts, precision)
                                       : make_attention(parts, std::move(rope), precision);
    mlp_ = make_mlp(parts, precision);
  }

  void forward(at::Tensor& hidden, const std::function<void(const AttentionRows&)>& sink,
               const Attend& attend, int64_t position) const override {
    add(hidden, (*mixer_)(entering(hidden, before_attention_), {hidden, sink, attend, position}),
        after_attention_);
    add(hidden,
        (*mlp_)(mlp_->routes() ? normed(hidden, before_mlp_) : entering(hidden, before_mlp_)),
        after_mlp_);
  }

  OutputMetrics output_metrics() const override { return mixer_->output_metrics(); }

 private:
  at::Tensor normed(const at::Tensor& x, const at::Tensor& weight) const {
    return weight.defined() ? rms_norm(x, weight, spec_.config.norm_eps) : x.clone();
  }
  // What a product reads.
  at::Tensor entering(const at::Tensor& x, const at::Tensor& weight) const {
    return weight.defined() ? normed_activation(x, weight, spec_.config.norm_eps, precision_)
                            : activation(x.clone(), precision_);
  }
  void add(at::Tensor& hidden, at::Tensor update, const at::Tensor& norm) const {
    if (norm.defined()) update = rms_norm(update.to(at::kFloat), norm, spec_.config.norm_eps);
    hidden.add_(update, spec_.residual_scale);
  }

  const TransformerSpec& spec_;
  Precision precision_;
  at::Tensor before_attention_, after_attention_, before_mlp_, after_mlp_;  // undefined: none
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Mlp> mlp_;
};

class Transformer : public Model {
 public:
  Transformer(TransformerSpec spec, std::unique_ptr<WeightSource> weights,
              std::function<std::unique_ptr<Tokenizer>()> tokenizer, Precision precision, at::Device device)
      : spec_(std::move(spec)),
        weights_(std::move(weights)),
        tokenizer_(std::move(tokenizer)),
        precision_(precision),
        device_(device) {}

  const ModelConfig& config() const override { return spec_.config; }
  at::Device device() const override { return device_; }
  const WeightSource& weights() const override { return *weights_; }
  TensorShapes layer_tensors(int layer) const override { return expected_layer_tensors(spec_, layer); }
  std::unique_ptr<Tokenizer> tokenizer() const override { return tokenizer_(); }
  void reserve_positions(int64_t positions) override {
    if (config().context > 0 && positions > config().context) {
      throw invalid("{}: sequences of {} tokens exceed the model's context of {}: lower --seq-len",
                    config().path, positions, config().context);
    }
    ropes_.clear();
    for (const auto& rope : config().ropes)
      ropes_.push_back(std::make_shared<const RopeTable>(rope, positions, device_));
  }
  at::Tensor embed(std::span<const int32_t> ids) const override {
    at::Tensor rows =
        weights_->load_rows("model.embed_tokens.weight", {config().vocabulary, config().hidden}, ids);
    if (spec_.embedding_scale != 1) rows.mul_(spec_.embedding_scale);
    return to_device(rows, device_);
  }
  std::unique_ptr<DecoderLayer> load_layer(int layer) const override {
    const int rope = spec_.layers.at(static_cast<size_t>(layer)).rope;
    return std::make_unique<TransformerLayer>(
        spec_, *weights_, layer, rope < 0 ? nullptr : ropes_.at(static_cast<size_t>(rope)), precision_,
        device_);
  }
  at::Tensor logits(const at::Tensor& hidden) const override {
    std::call_once(head_once_, [&] {
      head_ = weights_->load_on(device_,
                                config().tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                                {config().vocabulary, config().hidden});
      norm_ = weights_->load_on(device_, "model.norm.weight", {config().hidden}) + spec_.norm_offset;
    });
    at::Tensor logits = at::linear(rms_norm(hidden, norm_, config().norm_eps), head_);
    if (spec_.logit_scale != 1) logits.mul_(spec_.logit_scale);
    if (spec_.logit_cap > 0) logits.div_(spec_.logit_cap).tanh_().mul_(spec_.logit_cap);
    return logits;
  }

 private:
  TransformerSpec spec_;
  std::unique_ptr<WeightSource> weights_;
  std::function<std::unique_ptr<Tokenizer>()> tokenizer_;
  Precision precision_;
  at::Device device_;
  std::vector<std::shared_ptr<const RopeTable>> ropes_;
  mutable std::once_flag head_once_;
  mutable at::Tensor head_, norm_;
};

}  // namespace

std::unique_ptr<Model> make_transformer(TransformerSpec spec, std::unique_ptr<WeightSource> weights,
                                        std::function<std::unique_ptr<Tokenizer>()> tokenizer,
                                        Precision precision, at::Device device) {
  weights->check(expected_tensors(spec));
  auto shape = spec.config.attention.begin();
  for (auto& layer : spec.layers) {
    if (layer.recurrent()) continue;
    if (layer.sinks) {
      const at::Tensor sinks = LayerParts(spec, *weights, layer.attention.layer).load("self_attn.sinks");
      layer.attention.sink_logits.assign(sinks.const_data_ptr<float>(),
                                         sinks.const_data_ptr<float>() + sinks.numel());
    }
    *shape++ = layer.attention;
  }
  return std::make_unique<Transformer>(std::move(spec), std::move(weights), std::move(tokenizer), precision,
                                       device);
}

}  // namespace oscar
