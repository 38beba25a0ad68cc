// Gemma 3, the text decoder: four norms a layer, normalised queries and keys, five layers with a sliding
// window and a rope base of their own to one without, embeddings scaled by sqrt(hidden).
#include <cmath>

#include "libdump/models/families.h"

namespace oscar {
namespace {

constexpr int kPattern = 6;  // the sixth layer of six sees everything

void set_form(TransformerSpec& spec) {
  spec.after_attention = "post_attention_layernorm";
  spec.before_mlp = "pre_feedforward_layernorm";
  spec.after_mlp = "post_feedforward_layernorm";
  // As the reference computes it: rounded to the dtype that the family ships in.
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.config.hidden));
  for (auto& layer : spec.layers) layer.qk_norm = QkNorm::Head;
}

}  // namespace

TransformerSpec gemma3_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  set_form(spec);
  spec.norm_offset = 1;
  spec.logit_cap = config.cap("final_logit_softcapping", 0);
  if (config.has("attn_logit_softcapping"))
    throw config.unsupported("attn_logit_softcapping",
                             "transformers ignores it in this family, other engines do not");
  config.rope_fields();  // refuses contradictions
  const nlohmann::json* parameters = config.find("rope_parameters");
  if (parameters && !parameters->contains("full_attention"))
    throw config.unsupported("rope_parameters", "expected those of full_attention and of sliding_attention");
  const auto of = [&](const char* kind) -> const nlohmann::json* {
    if (!parameters) return nullptr;
    const auto entry = parameters->find(kind);
    return entry == parameters->end() ? nullptr : &*entry;
  };
  const int d = spec.layers.at(0).attention.dim_k;
  const nlohmann::json* global = of("full_attention") ? of("full_attention") : config.find("rope_scaling");
  spec.config.ropes = {config.rope(global, config.number("rope_theta", 1e6), d),
                       config.rope(of("sliding_attention"), config.number("rope_local_base_freq"), d)};
  const double scale = 1 / std::sqrt(config.number("query_pre_attn_scalar", 256.0));
  for (auto& layer : spec.layers) {
    layer.attention.scale = scale;
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
  }
  const auto pattern =
      config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", kPattern));
  set_windows(spec, config, config.integer("sliding_window", 4096),
              [&](int layer) { return pattern > 0 && (layer + 1) % pattern != 0; });
  for (auto& layer : spec.layers) layer.rope = layer.attention.sliding_window ? 1 : 0;
  return spec;
}

TransformerSpec gemma3_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  set_form(spec);
  spec.activation = Activation::GeluTanh;
  RopeConfig local = spec.config.ropes[0];
  local.base = file.number("gemma3.rope.freq_base_swa").value_or(1e4);
  local.scaling = "none";
  local.factor = 1;
  spec.config.ropes.push_back(local);
  const auto window = file.integer("gemma3.attention.sliding_window").value_or(0);
  for (auto& layer : spec.layers) {
    const bool local_layer = window > 0 && (layer.attention.layer + 1) % kPattern != 0;
    layer.attention.sliding_window = local_layer ? window : 0;
    layer.rope = local_layer ? 1 : 0;
    // The 27B model divides by its hidden size over its heads, the others by the head dim.
    if (spec.layers.size() == 62)
      layer.attention.scale =
          1 / std::sqrt(static_cast<double>(spec.config.hidden) / layer.attention.q_heads);
  }
  return spec;
}

}  // namespace oscar
