// Qwen3-Next, and what Qwen3.5 shares with it: three layers of gated delta rule to one of attention, whose
// output is gated; part of a head is rotated; norm weights are stored less 1.
#include <algorithm>

#include "formats/error.h"
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec qwen_hybrid(const HfConfig& config, std::string_view experts, bool fused_delta) {
  TransformerSpec spec = config.common(experts);
  if (spec.activation != Activation::Silu)
    throw config.unsupported("hidden_act", "the gated delta rule is known with silu only");
  spec.norm_offset = 1;
  DeltaSpec delta;
  delta.k_heads = config.integer("linear_num_key_heads", 16);
  delta.v_heads = config.integer("linear_num_value_heads", 32);
  delta.dim_k = config.integer("linear_key_head_dim", 128);
  delta.dim_v = config.integer("linear_value_head_dim", 128);
  delta.kernel = config.integer("linear_conv_kernel_dim", 4);
  delta.fused = delta.fused_gates = fused_delta;
  const nlohmann::json* types = config.find("layer_types");
  if (types && (!types->is_array() || types->size() != spec.layers.size()))
    throw failure("{}/config.json: 'layer_types': expected one kind a layer, found {}", config.path(),
                  types->dump());
  const auto interval = config.integer("full_attention_interval", 4);
  for (auto& layer : spec.layers) {
    const int id = layer.attention.layer;
    bool full = interval > 0 && (id + 1) % interval == 0;
    if (types) {
      const auto& kind = (*types)[static_cast<size_t>(id)];
      full = kind == "full_attention";
      if (!full && kind != "linear_attention")
        throw invalid("{}/config.json: layer {} is {}: only full and linear attention are supported",
                      config.path(), id, kind.dump());
    }
    if (!full) {
      layer.delta = delta;
      continue;
    }
    layer.qk_norm = QkNorm::Head;
    layer.output_gate = true;
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
  }
  return spec;
}

MoeSpec qwen_experts(const HfConfig& config) {
  MoeSpec moe;
  moe.experts = static_cast<int>(config.integer("num_experts"));
  moe.top = static_cast<int>(config.integer("num_experts_per_tok"));
  moe.intermediate = static_cast<int>(config.integer("moe_intermediate_size"));
  moe.shared = static_cast<int>(config.integer("shared_expert_intermediate_size", 512));
  moe.shared_name = "shared_expert";
  moe.shared_gate = true;
  return moe;
}

TransformerSpec qwen_hybrid_gguf(const GgufFile& file, bool experts, bool tiled) {
  TransformerSpec spec = common_gguf(file, experts);  // norm weights are stored whole
  const auto key = [&](const char* rest) { return spec.config.architecture + "." + rest; };
  DeltaSpec delta;
  delta.k_heads = need_positive(file, key("ssm.group_count"));
  delta.v_heads = need_positive(file, key("ssm.time_step_rank"));
  delta.dim_k = need_positive(file, key("ssm.state_size"));
  const auto values = need_positive(file, key("ssm.inner_size"));
  if (values % delta.v_heads != 0)
    throw failure("{}: {} {} does not divide among {} heads", spec.config.path, key("ssm.inner_size"), values,
                  delta.v_heads);
  delta.dim_v = values / delta.v_heads;
  delta.kernel = need_positive(file, key("ssm.conv_kernel"));
  delta.tiled = tiled;
  delta.fused_gates = !tiled;
  MoeSpec moe;
  if (experts) {
    moe = experts_gguf(file, spec);
    moe.shared = static_cast<int>(need_positive(file, key("expert_shared_feed_forward_length")));
    moe.shared_name = "shared_expert";
    moe.shared_gate = true;
  }
  for (auto& layer : spec.layers) {
    const auto blk = fmt::format("blk.{}.", layer.attention.layer);
    layer.moe = moe;
    // The tensors tell the kind: full_attention_interval is 4 even where a checkpoint lists other layers.
    if (file.find(blk + "ssm_a")) {
      layer.delta = delta;
      layer.delta.fused = file.find(blk + "ssm_in.weight") != nullptr;  // of early converters
    } else {
      layer.qk_norm = QkNorm::Head;
      layer.output_gate = true;
    }
  }
  return spec;
}

TransformerSpec qwen3_next_hf(const HfConfig& config) {
  TransformerSpec spec = qwen_hybrid(config, "num_experts", true);
  MoeSpec moe = qwen_experts(config);
  moe.normalise = config.flag("norm_topk_prob", true);
  const nlohmann::json* dense = config.find("mlp_only_layers");
  const auto step = config.integer("decoder_sparse_step", 1);
  for (auto& layer : spec.layers) {
    const int id = layer.attention.layer;
    const bool listed = dense && std::find(dense->begin(), dense->end(), id) != dense->end();
    if (!listed && step > 0 && (id + 1) % step == 0 && moe.experts > 0) layer.moe = moe;
  }
  return spec;
}

TransformerSpec qwen3_next_gguf(const GgufFile& file) {
  return qwen_hybrid_gguf(file, true, false);
}

}  // namespace oscar
