// gpt-oss (20B, 120B): a learned logit in the softmax of every query head, every other layer with a sliding
// window, YaRN, biases everywhere, experts with a clamped SwiGLU. MXFP4 checkpoints are read as they are.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec gpt_oss_hf(const HfConfig& config) {
  TransformerSpec spec = config.common("num_local_experts");
  if (!config.rope_fields()) {
    const nlohmann::json released = {{"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false},
                                     {"original_max_position_embeddings", 4096}};
    auto& rope = spec.config.ropes[0];
    rope = config.rope(&released, rope.base, rope.dim);
  }
  MoeSpec moe;
  moe.experts = static_cast<int>(config.integer("num_local_experts"));
  moe.top = static_cast<int>(config.integer("num_experts_per_tok"));
  moe.intermediate = spec.config.intermediate;
  moe.router = "router";
  moe.router_bias = true;  // softmax over the chosen is softmax over all, normalised
  moe.layout = ExpertLayout::Interleaved;
  moe.swiglu_alpha = config.number("swiglu_alpha", 1.702);
  moe.swiglu_limit = config.number("swiglu_limit", 7.0);
  for (auto& layer : spec.layers) {
    layer.moe = moe;
    layer.sinks = true;
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", true);
  }
  set_windows(spec, config, config.integer("sliding_window", 128), [](int layer) { return layer % 2 == 0; });
  return spec;
}

TransformerSpec gpt_oss_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file, true);
  // The file does not say that the ramp is not cut to whole dims; the model's configuration does.
  spec.config.ropes[0].truncate = false;
  MoeSpec moe = experts_gguf(file, spec);
  moe.router = "router";
  moe.router_bias = moe.expert_bias = true;
  moe.swiglu_alpha = 1.702;
  moe.swiglu_limit = 7;
  const auto window = need_positive(file, "gpt-oss.attention.sliding_window");
  for (auto& layer : spec.layers) {
    layer.moe = moe;
    layer.sinks = layer.qkv_bias = layer.out_bias = true;
    layer.attention.sliding_window = layer.attention.layer % 2 == 0 ? window : 0;
  }
  return spec;
}

}  // namespace oscar
