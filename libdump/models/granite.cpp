// Granite 3: a Llama with constants for the scale of embeddings, attention, residuals and logits.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec granite_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  spec.embedding_scale = config.number("embedding_multiplier", 1.0);
  spec.residual_scale = config.number("residual_multiplier", 1.0);
  spec.logit_scale = 1 / config.number("logits_scaling", 1.0);
  spec.mlp_bias = config.flag("mlp_bias", false);
  for (auto& layer : spec.layers) {
    layer.attention.scale = config.number("attention_multiplier", 1.0);
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
  }
  return spec;
}

TransformerSpec granite_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  spec.embedding_scale = file.number("granite.embedding_scale").value_or(1);
  spec.residual_scale = file.number("granite.residual_scale").value_or(1);
  spec.logit_scale = 1 / file.number("granite.logit_scale").value_or(1);
  for (auto& layer : spec.layers) {
    if (const auto scale = file.number("granite.attention.scale")) layer.attention.scale = *scale;
  }
  return spec;
}

}  // namespace oscar
