// Qwen2 and Qwen2.5: a Llama with biases of q, k and v; the upper layers may have a sliding window.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec qwen2_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  for (auto& layer : spec.layers) layer.qkv_bias = true;
  set_windows(spec, config,
              config.flag("use_sliding_window", false) ? config.integer("sliding_window", 0) : 0,
              [&](int layer) { return layer >= config.integer("max_window_layers", 0); });
  return spec;
}

TransformerSpec qwen2_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  for (auto& layer : spec.layers) layer.qkv_bias = true;
  return spec;
}

}  // namespace oscar
