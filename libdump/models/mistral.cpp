// Mistral: a Llama whose layers may all have a sliding window. GGUF files of it are of the llama
// architecture.
#include "libdump/models/families.h"

namespace oscar {

TransformerSpec mistral_hf(const HfConfig& config) {
  TransformerSpec spec = config.common();
  set_window(spec, config, config.integer("sliding_window", 0));
  return spec;
}

}  // namespace oscar
