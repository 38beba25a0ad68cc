// Qwen3.5 with experts, the text decoder.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec qwen3_5_moe_hf(const HfConfig& config) {
  TransformerSpec spec = qwen_hybrid(config, "num_experts", false);
  for (auto& layer : spec.layers) layer.moe = qwen_experts(config);
  return spec;
}

TransformerSpec qwen3_5_moe_gguf(const GgufFile& file) {
  return qwen_hybrid_gguf(file, true, true);
}

}  // namespace oscar
