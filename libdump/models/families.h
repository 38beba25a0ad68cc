// What the files of the families share.
#pragma once
#include <functional>

#include "libdump/models/gguf_config.h"
#include "libdump/models/hf_config.h"

namespace oscar {

#define OSCAR_FAMILY(name, model_type, architecture, summary) \
  TransformerSpec name##_hf(const HfConfig& config);          \
  TransformerSpec name##_gguf(const GgufFile& file);
#define OSCAR_NO_GGUF(name, model_type, summary) TransformerSpec name##_hf(const HfConfig& config);
#include "libdump/models/models.def"
#undef OSCAR_FAMILY
#undef OSCAR_NO_GGUF

// The window of each layer: of those that `layer_types` calls sliding_attention, or, where the configuration
// has no such list, that `slides` names. 0: none. std::invalid_argument for a kind of layer that is neither
// full nor sliding attention.
void set_windows(TransformerSpec& spec, const HfConfig& config, int64_t window,
                 const std::function<bool(int layer)>& slides);
// The same window in every layer, 0: none. std::invalid_argument where `layer_types` says otherwise: transformers
// does not read it in these families.
void set_window(TransformerSpec& spec, const HfConfig& config, int64_t window);
// std::invalid_argument where scoring_func is another than sigmoid, which transformers does not read.
void need_sigmoid_scores(const HfConfig& config);

// Qwen3-Next and Qwen3.5: layers of attention and of the gated delta rule, without experts yet; `experts` as
// in HfConfig::common, `fused_delta` DeltaSpec::fused.
TransformerSpec qwen_hybrid(const HfConfig& config, std::string_view experts, bool fused_delta);
MoeSpec qwen_experts(const HfConfig& config);  // the weights of the chosen sum to 1
// The same of a GGUF file; `tiled` as in DeltaSpec.
TransformerSpec qwen_hybrid_gguf(const GgufFile& file, bool experts, bool tiled);

}  // namespace oscar
