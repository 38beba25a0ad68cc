// What a layer does across tokens: attention over a cache, or a recurrence.
#pragma once
#include "libdump/models/layer_parts.h"
#include "libdump/models/model.h"

namespace oscar {

struct MixerCall {           // DecoderLayer::forward's
  const at::Tensor& hidden;  // (T, hidden) float32, the residual stream that enters the layer
  const std::function<void(const AttentionRows&)>& sink;
  const Attend& attend;
  int64_t position;
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  // x (T, hidden) from activation(), normalised; (T, hidden) out, float32 or bfloat16. Thread-safe.
  virtual at::Tensor operator()(const at::Tensor& x, const MixerCall& call) const = 0;
  virtual OutputMetrics output_metrics() const { return {}; }  // DecoderLayer's
};

// `rope` is nullptr where the layer has no positions. `parts.spec()` outlives the mixer.
std::unique_ptr<Mixer> make_attention(const LayerParts& parts, std::shared_ptr<const RopeTable> rope,
                                      Precision precision);
std::unique_ptr<Mixer> make_gated_delta(const LayerParts& parts, Precision precision);

}  // namespace oscar
