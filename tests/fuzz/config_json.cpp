// config.json of a model directory: what families ask it for.
#include "libdump/models/hf_config.h"
#include "tests/fuzz/json_mutant.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oscar;
  static const fuzz::Folder folder;
  fuzz::write_input(folder.path / "config.json", data, size);
  fuzz::watch(
      size,
      [&] {
        const HfConfig config(folder.path);
        const auto spec = config.common(config.has("num_experts") ? "num_experts" : "");
        config.cap("attn_logit_softcapping", 0);
        config.flag("attention_bias", false);
        for (const RopeConfig& rope : spec.config.ropes) {
          if (rope.dim > 512) continue;  // bounded by the shapes of weights, which are not here
          rope.frequencies();
          rope.frequencies(5000);
        }
        spec.config.describe_rope();
      },
      fuzz::Refusals::WithReason);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return oscar::fuzz::json_mutant(data, size, max_size, seed);
}
