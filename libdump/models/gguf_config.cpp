#include "libdump/models/gguf_config.h"

#include <cmath>

#include "formats/error.h"
#include "libcalib/artifacts/rotary_order.h"

namespace oscar {

int64_t need_positive(const GgufFile& file, const std::string& key) {
  const auto value = file.integer(key);
  if (!value || *value <= 0)
    throw failure("{}: metadata {}: expected a positive integer, found {}", file.file()->path().string(), key,
                  value ? std::to_string(*value) : "nothing");
  if (*value > (int64_t{1} << 30))
    throw failure("{}: metadata {}: {} is not plausible", file.file()->path().string(), key, *value);
  return *value;
}

static RopeConfig rope_of(const GgufFile& file, const std::string& architecture, int dim_k) {
  const auto path = file.file()->path().string();
  RopeConfig rope;
  rope.base = file.number(architecture + ".rope.freq_base").value_or(10000);
  rope.dim = static_cast<int>(file.integer(architecture + ".rope.dimension_count").value_or(dim_k));
  const std::string key = architecture + ".rope.scaling.type";
  if (const auto scaling = file.text(key).value_or("none"); scaling == "linear") {
    rope.scaling = scaling;
    rope.factor = file.number(architecture + ".rope.scaling.factor").value_or(1);
  } else if (scaling != "none") {
    throw invalid("{}: {} '{}' is not supported; known: none, linear", path, key, scaling);
  }
  if (const GgufTensor* divisors = file.find("rope_freqs.weight")) {
    if (divisors->type->name != "F32" || divisors->shape != Shape{rope.dim / 2})
      throw failure("{}: rope_freqs.weight: expected F32 [{}], found {} {}", path, rope.dim / 2,
                    divisors->type->name, to_string(divisors->shape));
    rope.scaling = "divisors";
    rope.divisors = Tensor{DType::F32, divisors->shape, divisors->bytes, file.file()}.doubles();
    for (const double divisor : rope.divisors) {
      if (!(divisor > 0)) throw failure("{}: rope_freqs.weight holds {}", path, divisor);
    }
  }
  return rope;
}

TransformerSpec common_gguf(const GgufFile& file) {
  const auto path = file.file()->path().string();
  TransformerSpec spec;
  ModelConfig& config = spec.config;
  config.path = path;
  config.architecture = file.text("general.architecture").value_or("");
  config.name = file.text("general.name").value_or("");
  const auto key = [&](const char* rest) { return config.architecture + "." + rest; };
  const auto layers = need_positive(file, key("block_count"));
  config.hidden = static_cast<int>(need_positive(file, key("embedding_length")));
  config.intermediate = static_cast<int>(need_positive(file, key("feed_forward_length")));
  config.context = file.integer(key("context_length")).value_or(0);
  config.norm_eps = file.number(key("attention.layer_norm_rms_epsilon")).value_or(1e-5);
  config.tied_embeddings = !file.find("output.weight");
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    throw failure("{}: tensor token_embd.weight: expected a matrix, found {}", path,
                  embedding ? to_string(embedding->shape) : "nothing");
  config.vocabulary = static_cast<int>(embedding->shape[0]);
  if (file.integer(key("expert_count")).value_or(0) > 0)
    throw invalid("{}: a mixture of experts ({}) is not supported", path, key("expert_count"));

  LayerSpec layer;
  LayerShape& shape = layer.attention;
  shape.q_heads = static_cast<int>(need_positive(file, key("attention.head_count")));
  shape.kv_heads = static_cast<int>(file.integer(key("attention.head_count_kv")).value_or(shape.q_heads));
  shape.dim_k =
      static_cast<int>(file.integer(key("attention.key_length")).value_or(config.hidden / shape.q_heads));
  shape.dim_v = static_cast<int>(file.integer(key("attention.value_length")).value_or(shape.dim_k));
  if (shape.dim_k <= 0) throw failure("{}: head dim {} is not a positive multiple of 4", path, shape.dim_k);
  shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.dim_k));
  config.ropes = {rope_of(file, config.architecture, shape.dim_k)};
  for (int i = 0; i < layers; ++i) {
    shape.layer = i;
    spec.layers.push_back(layer);
  }
  return spec;
}

std::map<std::string, GgufName> gguf_names(const TransformerSpec& spec) {
  const bool interleaved = rotary_order(spec.config.architecture) == RotaryOrder::Interleaved;
  std::map<std::string, GgufName> names{{"model.embed_tokens.weight", {"token_embd.weight"}},
                                        {"model.norm.weight", {"output_norm.weight"}},
                                        {"lm_head.weight", {"output.weight"}}};
  for (const auto& layer : spec.layers) {
    const auto& a = layer.attention;
    const auto add = [&](const std::string& part, const std::string& name, int64_t heads = 0) {
      for (const char* kind : {".weight", ".bias"})
        names[layer_tensor(a.layer, part + kind)] = {fmt::format("blk.{}.{}{}", a.layer, name, kind), heads};
    };
    for (const auto& [norm, name] : {std::pair{spec.before_attention, "attn_norm"},
                                     {spec.after_attention, "post_attention_norm"},
                                     {spec.before_mlp, "ffn_norm"},
                                     {spec.after_mlp, "post_ffw_norm"}}) {
      if (!norm.empty()) add(norm, name);
    }
    add("self_attn.q_proj", "attn_q", interleaved ? a.q_heads : 0);
    add("self_attn.k_proj", "attn_k", interleaved ? a.kv_heads : 0);
    add("self_attn.v_proj", "attn_v");
    add("self_attn.qkv_proj", "attn_qkv");
    add("self_attn.o_proj", "attn_output");
    add("self_attn.q_norm", "attn_q_norm");
    add("self_attn.k_norm", "attn_k_norm");
    add("mlp.gate_proj", "ffn_gate");
    add("mlp.up_proj", "ffn_up");
    add("mlp.gate_up_proj", "ffn_up");
    add("mlp.down_proj", "ffn_down");
  }
  return names;
}

}  // namespace oscar
