// Gemma 2: soft caps on the logits of attention and of the vocabulary, every other layer with a sliding
// window, four norms a layer, embeddings scaled by sqrt(hidden).
#include <cmath>

#include "formats/error.h"
#include "libdump/models/families.h"

namespace oscar {
namespace {

void set_form(TransformerSpec& spec) {
  spec.after_attention = "post_attention_layernorm";
  spec.before_mlp = "pre_feedforward_layernorm";
  spec.after_mlp = "post_feedforward_layernorm";
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.config.hidden));
}

bool slides(int layer) {
  return layer % 2 == 0;
}

}  // namespace

TransformerSpec gemma2_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  set_form(spec);
  spec.norm_offset = 1;
  spec.logit_cap = config.cap("final_logit_softcapping", 30.0);
  for (auto& layer : spec.layers) {
    layer.attention.scale = 1 / std::sqrt(config.number("query_pre_attn_scalar", 256.0));
    layer.attention.logit_cap = config.cap("attn_logit_softcapping", 50.0);
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
  }
  set_windows(spec, config, config.integer("sliding_window", 4096), slides);
  return spec;
}

TransformerSpec gemma2_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  set_form(spec);
  spec.activation = Activation::GeluTanh;
  const auto cap = [&](const char* key) {
    const auto value = file.number(std::string("gemma2.") + key);
    if (!value || !(*value > 0))
      throw failure("{}: metadata gemma2.{}: expected a positive number, found {}", spec.config.path, key,
                    value ? std::to_string(*value) : "nothing");
    return *value;
  };
  spec.logit_cap = cap("final_logit_softcapping");
  const auto window = file.integer("gemma2.attention.sliding_window").value_or(4096);
  for (auto& layer : spec.layers) {
    layer.attention.logit_cap = cap("attn_logit_softcapping");
    layer.attention.sliding_window = slides(layer.attention.layer) ? window : 0;
    // The 27B model divides by its hidden size over its heads, the others by the head dim.
    if (spec.layers.size() == 46)
      layer.attention.scale =
          1 / std::sqrt(static_cast<double>(spec.config.hidden) / layer.attention.q_heads);
  }
  return spec;
}

}  // namespace oscar
