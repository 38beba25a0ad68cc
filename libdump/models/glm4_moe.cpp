// GLM-4.5 to 4.7: part of a head is rotated; sigmoid scores with a correction that chooses and does not
// weigh, one shared expert, dense layers first.
#include "formats/error.h"
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec glm4_moe_hf(const HfConfig& config) {
  TransformerSpec spec = config.common("n_routed_experts");
  if (config.integer("n_group", 1) != 1 || config.integer("topk_group", 1) != 1)
    throw config.unsupported("n_group", "experts in groups are not supported");
  need_sigmoid_scores(config);
  MoeSpec moe;
  moe.experts = static_cast<int>(config.integer("n_routed_experts"));
  moe.top = static_cast<int>(config.integer("num_experts_per_tok"));
  moe.intermediate = static_cast<int>(config.integer("moe_intermediate_size"));
  moe.normalise = config.flag("norm_topk_prob", true);
  moe.sigmoid = moe.correction = true;
  moe.scale = config.number("routed_scaling_factor", 1.0);
  moe.shared = moe.intermediate * static_cast<int>(config.integer("n_shared_experts", 1));
  for (auto& layer : spec.layers) {
    layer.qkv_bias = config.flag("attention_bias", false);
    if (config.flag("use_qk_norm", false)) layer.qk_norm = QkNorm::Head;
    if (layer.attention.layer >= config.integer("first_k_dense_replace", 1)) layer.moe = moe;
  }
  return spec;
}

TransformerSpec glm4_moe_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file, true);
  MoeSpec moe = experts_gguf(file, spec);
  moe.sigmoid = moe.sigmoid || !file.integer("glm4moe.expert_gating_func");
  moe.shared = moe.intermediate * static_cast<int>(file.integer("glm4moe.expert_shared_count").value_or(0));
  const auto dense = file.integer("glm4moe.leading_dense_block_count").value_or(0);
  for (auto& layer : spec.layers) {
    layer.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
    if (file.find("blk.0.attn_q_norm.weight")) layer.qk_norm = QkNorm::Head;
    if (layer.attention.layer >= dense) layer.moe = moe;
  }
  return spec;
}

}  // namespace oscar
