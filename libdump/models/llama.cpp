// Llama 1 to 3 without rope scaling, SmolLM and SmolLM2: pre-norm, GQA, rotary in halves, SwiGLU.
// A GGUF of this architecture stores q and k rows with the rotary halves interleaved; they are put back here.
#include <ATen/ATen.h>

#include <map>

#include "formats/error.h"
#include "kernels/gram.h"
#include "libdump/layers.h"
#include "libdump/models/model.h"
#include "libdump/weights/gguf_weights.h"

namespace oscar {

namespace {

// Row 2i of a head is the i-th of its first half, row 2i + 1 the i-th of the second: back to halves one after
// the other.
at::Tensor undo_interleaving(const at::Tensor& weight, int64_t heads) {
  const int64_t d = weight.size(0) / heads, in = weight.size(1);
  return weight.view({heads, d / 2, 2, in}).transpose(1, 2).reshape({heads * d, in});
}

// The tensors of a layer, without "blk.N." and ".weight".
std::map<std::string, std::vector<int64_t>> layer_tensors(const ModelConfig& config,
                                                          const LayerShape& shape) {
  const int64_t hidden = config.hidden, ff = config.intermediate, q = shape.q_heads * shape.dim_k,
                kv = shape.kv_heads * shape.dim_k;
  return {{"attn_norm", {hidden}},    {"attn_q", {q, hidden}},      {"attn_k", {kv, hidden}},
          {"attn_v", {kv, hidden}},   {"attn_output", {hidden, q}}, {"ffn_norm", {hidden}},
          {"ffn_gate", {ff, hidden}}, {"ffn_up", {ff, hidden}},     {"ffn_down", {hidden, ff}}};
}
std::string layer_tensor(int layer, const std::string& name) {
  return "blk." + std::to_string(layer) + "." + name + ".weight";
}

// What `attend` makes of a sequence; rounded as exact attention is.
AttentionOutput attended(const AttentionRows& rows, const Attend& attend, Precision precision) {
  AttentionOutput out{at::empty({rows.tokens, rows.shape->q_heads, rows.shape->dim_v}, at::kFloat), {}};
  attend(rows, out.o.mutable_data_ptr<float>());
  if (precision == Precision::BFloat16) round_to_bf16(out.o.mutable_data_ptr<float>(), out.o.numel());
  return out;
}

class LlamaLayer : public DecoderLayer {
 public:
  LlamaLayer(const ModelConfig& config, const WeightSource& weights, int index,
             std::shared_ptr<const RopeTable> rope, Precision precision)
      : config_(config),
        shape_(config.attention.at(static_cast<size_t>(index))),
        rope_(std::move(rope)),
        precision_(precision) {
    const auto shapes = layer_tensors(config, shape_);
    const auto load = [&](const char* name) {
      return weights.load(layer_tensor(index, name), shapes.at(name));
    };
    attention_norm_ = load("attn_norm");
    mlp_norm_ = load("ffn_norm");
    const at::Tensor q = undo_interleaving(load("attn_q"), shape_.q_heads);
    const at::Tensor k = undo_interleaving(load("attn_k"), shape_.kv_heads);
    qkv_ = Linear(at::cat({q, k, load("attn_v")}), precision);
    at::Tensor out = load("attn_output");
    set_output_metrics(out);
    out_ = Linear(out, precision);
    gate_up_ = Linear(at::cat({load("ffn_gate"), load("ffn_up")}), precision);
    down_ = Linear(load("ffn_down"), precision);
  }

  void forward(at::Tensor& hidden, const std::function<void(const AttentionRows&)>& sink,
               const Attend& attend, int64_t position) const override {
    const int64_t tokens = hidden.size(0), d = shape_.dim_k, q_width = shape_.q_heads * d,
                  kv_width = shape_.kv_heads * d;
    const at::Tensor qkv = qkv_(activation(rms_norm(hidden, attention_norm_, config_.norm_eps), precision_));
    at::Tensor q = at::empty({tokens, q_width}, at::kFloat), k = at::empty({tokens, kv_width}, at::kFloat);
    rope_->apply(qkv, 0, shape_.q_heads, shape_.dim_k, position, q.mutable_data_ptr<float>());
    rope_->apply(qkv, q_width, shape_.kv_heads, shape_.dim_k, position, k.mutable_data_ptr<float>());
    at::Tensor v =
        at::empty({tokens, kv_width}, at::kFloat).copy_(qkv.narrow(1, q_width + kv_width, kv_width));
    if (precision_ == Precision::BFloat16) {
      for (at::Tensor* rows : {&q, &k, &v}) round_to_bf16(rows->mutable_data_ptr<float>(), rows->numel());
    }
    AttentionRows rows{.shape = &shape_,
                       .tokens = tokens,
                       .q = q.const_data_ptr<float>(),
                       .k = k.const_data_ptr<float>(),
                       .v = v.const_data_ptr<float>(),
                       .o = nullptr,
                       .lse = nullptr};
    const AttentionOutput attention =
        attend ? attended(rows, attend, precision_)
               : causal_attention(rows.q, rows.k, rows.v, tokens, shape_, precision_);
    rows.o = attention.o.const_data_ptr<float>();
    if (!attend) rows.lse = attention.lse.const_data_ptr<float>();
    rows.hidden = hidden.const_data_ptr<float>();
    rows.hidden_width = hidden.size(1);
    if (sink) sink(rows);
    hidden.add_(out_(activation(attention.o.view({tokens, q_width}), precision_)));
    const at::Tensor gate_up =
        gate_up_(activation(rms_norm(hidden, mlp_norm_, config_.norm_eps), precision_));
    hidden.add_(down_(activation(swiglu(gate_up), precision_)));
  }

  std::vector<Matrix> output_metrics() const override { return output_metrics_; }

 private:
  void set_output_metrics(const at::Tensor& out) {
    const int64_t d = shape_.dim_v, stride = shape_.q_heads * d;
    output_metrics_.assign(static_cast<size_t>(shape_.q_heads), Matrix::Zero(d, d));
    for (int j = 0; j < shape_.q_heads; ++j) {
      add_gram(out.const_data_ptr<float>() + j * d, stride, nullptr, out.size(0), static_cast<int>(d),
               output_metrics_[static_cast<size_t>(j)].data());
    }
  }

  const ModelConfig& config_;
  LayerShape shape_;
  std::shared_ptr<const RopeTable> rope_;
  Precision precision_;
  at::Tensor attention_norm_, mlp_norm_;
  Linear qkv_, out_, gate_up_, down_;
  std::vector<Matrix> output_metrics_;
};

class Llama : public Model {
 public:
  Llama(ModelConfig config, std::shared_ptr<const GgufFile> file, Precision precision)
      : config_(std::move(config)),
        file_(file),
        weights_(std::make_unique<GgufWeights>(std::move(file))),
        precision_(precision) {}

  const ModelConfig& config() const override { return config_; }
  const WeightSource& weights() const override { return *weights_; }
  std::unique_ptr<Tokenizer> tokenizer() const override { return tokenizer_from_gguf(*file_); }
  void reserve_positions(int64_t positions) override {
    if (config_.context > 0 && positions > config_.context) {
      throw invalid("{}: sequences of {} tokens exceed the model's context of {}: lower --seq-len",
                    config_.path, positions, config_.context);
    }
    rope_ = std::make_shared<const RopeTable>(config_.rope, positions);
  }
  at::Tensor embed(std::span<const int32_t> ids) const override {
    return weights_->load_rows("token_embd.weight", {config_.vocabulary, config_.hidden}, ids);
  }
  std::unique_ptr<DecoderLayer> load_layer(int layer) const override {
    return std::make_unique<LlamaLayer>(config_, *weights_, layer, rope_, precision_);
  }
  at::Tensor logits(const at::Tensor& hidden) const override {
    std::call_once(head_once_, [&] {
      head_ = weights_->load(config_.tied_embeddings ? "token_embd.weight" : "output.weight",
                             {config_.vocabulary, config_.hidden});
      norm_ = weights_->load("output_norm.weight", {config_.hidden});
    });
    return at::linear(rms_norm(hidden, norm_, config_.norm_eps), head_);
  }

 private:
  ModelConfig config_;
  std::shared_ptr<const GgufFile> file_;
  std::unique_ptr<WeightSource> weights_;
  Precision precision_;
  std::shared_ptr<const RopeTable> rope_;
  mutable std::once_flag head_once_;
  mutable at::Tensor head_, norm_;
};

int64_t need(const GgufFile& file, const std::string& key) {
  const auto value = file.integer(key);
  if (!value || *value <= 0)
    throw failure("{}: metadata {}: expected a positive integer, found {}", file.file()->path().string(), key,
                  value ? std::to_string(*value) : "nothing");
  if (*value > (int64_t{1} << 30))
    throw failure("{}: metadata {}: {} is not plausible", file.file()->path().string(), key, *value);
  return *value;
}

// Every tensor of the file must be one that the family reads, or the model is not what this file computes;
// and all of them are asked for before the run, not in its last layer.
void check_tensors(const std::shared_ptr<const GgufFile>& file, const ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>> expected{
      {"token_embd.weight", {config.vocabulary, config.hidden}}, {"output_norm.weight", {config.hidden}}};
  if (!config.tied_embeddings) expected["output.weight"] = expected["token_embd.weight"];
  for (const LayerShape& shape : config.attention) {
    for (const auto& [name, dims] : layer_tensors(config, shape))
      expected[layer_tensor(shape.layer, name)] = dims;
  }
  for (const auto& tensor : file->tensors()) {
    if (!expected.contains(tensor.name)) {
      throw invalid(
          "{}: tensor {} is not part of a llama decoder as this tool computes it (biases, experts and rope "
          "factors are not supported)",
          file->file()->path().string(), tensor.name);
    }
  }
  const GgufWeights weights(file);
  for (const auto& [name, dims] : expected) weights.find(name, dims);
}

}  // namespace

std::unique_ptr<Model> open_llama_gguf(std::shared_ptr<const GgufFile> file, Precision precision) {
  const auto path = file->file()->path().string();
  ModelConfig config;
  config.path = path;
  config.architecture = "llama";
  config.name = file->text("general.name").value_or("");
  config.layers = static_cast<int>(need(*file, "llama.block_count"));
  config.hidden = static_cast<int>(need(*file, "llama.embedding_length"));
  config.intermediate = static_cast<int>(need(*file, "llama.feed_forward_length"));
  config.context = file->integer("llama.context_length").value_or(0);
  config.norm_eps = file->number("llama.attention.layer_norm_rms_epsilon").value_or(1e-5);
  config.tied_embeddings = !file->find("output.weight");
  const GgufTensor* embedding = file->find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    throw failure("{}: tensor token_embd.weight: expected a matrix, found {}", path,
                  embedding ? to_string(embedding->shape) : "nothing");
  config.vocabulary = static_cast<int>(embedding->shape[0]);

  LayerShape shape;
  shape.q_heads = static_cast<int>(need(*file, "llama.attention.head_count"));
  shape.kv_heads = static_cast<int>(file->integer("llama.attention.head_count_kv").value_or(shape.q_heads));
  if (shape.kv_heads <= 0 || shape.q_heads % shape.kv_heads != 0)
    throw failure("{}: {} query heads cannot share {} KV heads", path, shape.q_heads, shape.kv_heads);
  shape.dim_k =
      static_cast<int>(file->integer("llama.attention.key_length").value_or(config.hidden / shape.q_heads));
  shape.dim_v = static_cast<int>(file->integer("llama.attention.value_length").value_or(shape.dim_k));
  if (shape.dim_k <= 0 || shape.dim_k % 4 != 0)
    throw failure("{}: head dim {} is not a positive multiple of 4", path, shape.dim_k);
  if (shape.dim_v != shape.dim_k)
    throw invalid("{}: key length {} and value length {} differ: not supported for this family", path,
                  shape.dim_k, shape.dim_v);
  shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.dim_k));

  config.rope.base = file->number("llama.rope.freq_base").value_or(10000);
  config.rope.dim = static_cast<int>(file->integer("llama.rope.dimension_count").value_or(shape.dim_k));
  if (config.rope.dim != shape.dim_k)
    throw invalid(
        "{}: llama.rope.dimension_count {} differs from the head dim {}: partial rotary is not supported for "
        "this family",
        path, config.rope.dim, shape.dim_k);
  if (const auto scaling = file->text("llama.rope.scaling.type"); scaling && *scaling != "none") {
    throw invalid("{}: llama.rope.scaling.type '{}' is not supported; known: none", path, *scaling);
  }
  if (file->integer("llama.expert_count").value_or(0) > 0)
    throw invalid("{}: a mixture of experts (llama.expert_count) is not supported", path);
  for (int i = 0; i < config.layers; ++i) {
    shape.layer = i;
    config.attention.push_back(shape);
  }
  check_tensors(file, config);
  return std::make_unique<Llama>(std::move(config), std::move(file), precision);
}

}  // namespace oscar
