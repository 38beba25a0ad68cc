// GLM-4 (0414): part of a head is rotated, in neighbours; four norms a layer; gate and up in one projection.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec glm4_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  spec.after_attention = "post_self_attn_layernorm";
  spec.after_mlp = "post_mlp_layernorm";
  spec.fused_gate_up = true;
  spec.config.ropes[0].neighbours = true;
  for (auto& layer : spec.layers) layer.qkv_bias = config.flag("attention_bias", false);
  return spec;
}

TransformerSpec glm4_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  spec.after_attention = "post_self_attn_layernorm";
  spec.after_mlp = "post_mlp_layernorm";
  spec.fused_gate_up = true;
  spec.config.ropes[0].neighbours = true;
  for (auto& layer : spec.layers) layer.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  return spec;
}

}  // namespace oscar
