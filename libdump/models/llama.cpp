// Llama 1 to 3.x, SmolLM and SmolLM2: pre-norm, GQA, rotary in halves, SwiGLU.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec llama_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  spec.mlp_bias = config.flag("mlp_bias", false);
  for (auto& layer : spec.layers) layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
  return spec;
}

TransformerSpec llama_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file, true);
  if (file.integer("llama.expert_count").value_or(0) > 0) {  // Mixtral
    for (auto& layer : spec.layers) layer.moe = experts_gguf(file, spec);
    return spec;
  }
  spec.mlp_bias = file.find("blk.0.ffn_down.bias") != nullptr;
  for (auto& layer : spec.layers) {
    layer.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
    layer.out_bias = file.find("blk.0.attn_output.bias") != nullptr;
  }
  return spec;
}

}  // namespace oscar
