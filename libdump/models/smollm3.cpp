// SmolLM3: a Llama in which every fourth layer has no positions.
#include "formats/error.h"
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec smollm3_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  const auto interval = config.integer("no_rope_layer_interval", 4);
  const nlohmann::json* listed = config.find("no_rope_layers");  // 1: with positions
  if (listed && (!listed->is_array() || listed->size() != spec.layers.size()))
    throw failure("{}/config.json: 'no_rope_layers': expected one number a layer", config.path());
  for (auto& layer : spec.layers) {
    const int id = layer.attention.layer;
    layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
    const bool positions =
        listed ? (*listed)[static_cast<size_t>(id)] == 1 : interval == 0 || (id + 1) % interval != 0;
    if (!positions) layer.rope = -1;
  }
  spec.mlp_bias = config.flag("mlp_bias", false);
  set_windows(spec, config,
              config.flag("use_sliding_window", false) ? config.integer("sliding_window", 0) : 0,
              [&](int layer) { return spec.layers[static_cast<size_t>(layer)].rope < 0; });
  return spec;
}

// The file does not say which layers have positions; every engine takes the interval of the release.
TransformerSpec smollm3_gguf(const GgufFile& file) {
  TransformerSpec spec = common_gguf(file);
  for (auto& layer : spec.layers) {
    if ((layer.attention.layer + 1) % 4 == 0) layer.rope = -1;
  }
  return spec;
}

}  // namespace oscar
