// Mixtral: Mistral attention; experts w1 (gate), w3 (up), w2 (down).
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec mixtral_hf(const HfConfig& config) {
  TransformerSpec spec = config.common("num_local_experts");
  MoeSpec moe;
  moe.experts = static_cast<int>(config.integer("num_local_experts"));
  moe.top = static_cast<int>(config.integer("num_experts_per_tok"));
  moe.intermediate = spec.config.intermediate;
  moe.stem = "block_sparse_moe";
  moe.gate = "w1";
  moe.up = "w3";
  moe.down = "w2";
  for (auto& layer : spec.layers) layer.moe = moe;
  set_window(spec, config, config.integer("sliding_window", 0));
  return spec;
}

}  // namespace oscar
