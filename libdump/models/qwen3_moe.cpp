// Qwen3-MoE (30B-A3B, 235B-A22B): Qwen3 attention; experts picked by a softmax over all of them, in some
// layers or in all.
#include <fmt/format.h>

#include <algorithm>

#include "libdump/models/families.h"

namespace oscar {

TransformerSpec qwen3_moe_hf(const HfConfig& config) {
  TransformerSpec spec = config.common("num_experts");
  MoeSpec moe;
  moe.experts = static_cast<int>(config.integer("num_experts"));
  moe.top = static_cast<int>(config.integer("num_experts_per_tok"));
  moe.intermediate = static_cast<int>(config.integer("moe_intermediate_size"));
  moe.normalise = config.flag("norm_topk_prob", false);
  const nlohmann::json* dense = config.find("mlp_only_layers");
  const auto step = config.integer("decoder_sparse_step", 1);
  for (auto& layer : spec.layers) {
    const int id = layer.attention.layer;
    layer.qk_norm = QkNorm::Head;
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
    const bool listed = dense && std::find(dense->begin(), dense->end(), id) != dense->end();
    if (!listed && step > 0 && (id + 1) % step == 0) layer.moe = moe;
  }
  set_window(spec, config, config.flag("use_sliding_window", false) ? config.integer("sliding_window", 0) : 0);
  return spec;
}

TransformerSpec qwen3_moe_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file, true);
  for (auto& layer : spec.layers) {
    layer.qk_norm = QkNorm::Head;
    // Where a model has dense layers too, their tensors are of another name.
    if (file.find(fmt::format("blk.{}.ffn_gate_inp.weight", layer.attention.layer)))
      layer.moe = experts_gguf(file, spec);
  }
  return spec;
}

}  // namespace oscar
