// Phi-3 and Phi-4: q, k and v in one projection, gate and up in another.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec phi3_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  spec.fused_qkv = spec.fused_gate_up = true;
  set_window(spec, config, config.integer("sliding_window", 0));
  return spec;
}

TransformerSpec phi3_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  spec.fused_qkv = spec.fused_gate_up = true;
  const auto window = file.integer("phi3.attention.sliding_window").value_or(0);
  for (auto& layer : spec.layers) layer.attention.sliding_window = window;
  return spec;
}

}  // namespace oscar
