// Qwen3.5, the text decoder: Qwen3-Next's layers with the projections of the delta rule in four parts, and a
// dense MLP.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec qwen3_5_hf(const HfConfig& config) {
  return qwen_hybrid(config, {}, false);
}

TransformerSpec qwen3_5_gguf(const GgufFile& file) {
  return qwen_hybrid_gguf(file, false, true);
}

}  // namespace oscar
