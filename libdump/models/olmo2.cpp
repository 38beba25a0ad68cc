// OLMo 2: what attention and MLP add is normalised, not what they read; queries and keys are normalised over
// all heads of a row.
#include "libdump/models/families.h"

namespace oscar {
namespace {

TransformerSpec with_form(TransformerSpec spec) {
  spec.before_attention = "";
  spec.after_attention = "post_attention_layernorm";
  spec.before_mlp = "";
  spec.after_mlp = "post_feedforward_layernorm";
  for (auto& layer : spec.layers) layer.qk_norm = QkNorm::Row;
  return spec;
}

}  // namespace

TransformerSpec olmo2_hf(const HfConfig& config) {
  TransformerSpec spec = with_form(config.common());
  for (auto& layer : spec.layers) layer.qkv_bias = layer.out_bias = config.flag("attention_bias", false);
  return spec;
}

TransformerSpec olmo2_gguf(const GgufFile& file) {
  return with_form(common_gguf(file));
}

}  // namespace oscar
