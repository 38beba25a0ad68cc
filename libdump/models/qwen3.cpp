// Qwen3: queries and keys of every head are normalised before the rotary embedding; head_dim is stated and
// not hidden / heads.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec qwen3_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  for (auto& layer : spec.layers) {
    layer.qk_norm = QkNorm::Head;
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
  }
  set_windows(spec, config,
              config.flag("use_sliding_window", false) ? config.integer("sliding_window", 0) : 0,
              [&](int layer) { return layer >= config.integer("max_window_layers", 0); });
  return spec;
}

TransformerSpec qwen3_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  for (auto& layer : spec.layers) layer.qk_norm = QkNorm::Head;
  return spec;
}

}  // namespace oscar
