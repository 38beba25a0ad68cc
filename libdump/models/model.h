// A model family: how a checkpoint of it becomes a ModelConfig, and one decoder layer at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>

#include "formats/gguf.h"
#include "libdump/model_config.h"
#include "libdump/precision.h"
#include "libdump/tokenizer/tokenizer.h"
#include "libdump/weights/weight_source.h"

namespace oscar {

// The same as AttentionRows where the model is on a GPU: tensors there, q, k, v and o in the precision of the
// run.
struct DeviceRows {
  at::Tensor q, k, v, o;  // (T, Hq, Dk), (T, Hkv, Dk), (T, Hkv, Dv), (T, Hq, Dv), contiguous
  at::Tensor lse;         // (Hq, T) float32
  at::Tensor hidden;      // (T, hidden) float32
  at::Tensor metric;      // (Hq, Dv, Dv) float32, the layer's OutputMetrics
};

// Post-RoPE rows of one sequence in one layer, float32 contiguous, and the log-sum-exp of its attention.
struct AttentionRows {
  const LayerShape* shape;
  int64_t tokens;
  const float* q;    // (T, Hq, Dk)
  const float* k;    // (T, Hkv, Dk)
  const float* v;    // (T, Hkv, Dv)
  const float* o;    // (T, Hq, Dv) attention output before o_proj
  const float* lse;  // (Hq, T), natural logarithm; nullptr where Attend took the place of exact attention
  const float* hidden =
      nullptr;  // (T, hidden_width) the residual stream that enters the layer, before its norm
  int64_t hidden_width = 0;
  const DeviceRows* device = nullptr;  // on a GPU: these instead of every pointer above
};

// What takes the place of a layer's attention: reads q, k and v (o and lse are nullptr), and writes o
// (T, Hq, Dv). On a GPU it reads rows.device, whose lse is undefined, and writes into rows.device->o; o is nullptr.
using Attend = std::function<void(const AttentionRows& rows, float* o)>;

// Hq x (Dv, Dv): G_j = W_O,j^T W_O,j of the slice of W_O that reads query head j, so that |r W_O,j^T|^2 =
// r G_j r^T.
using OutputMetrics = std::shared_ptr<const std::vector<Matrix>>;

// One decoder layer with its weights in memory. forward() is const and thread-safe: one sequence per thread.
class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  // hidden (T, hidden) float32 where the model is, replaced by the layer's output. Calls `sink` once when the layer has a cache.
  // Attention is exact and causal where `attend` is empty. The first row is at `position` of its sequence;
  // where that is not 0, which only a CPU can run, `attend` knows the rows before it. On a GPU what `sink` gets may
  // still be computed.
  virtual void forward(at::Tensor& hidden, const std::function<void(const AttentionRows&)>& sink,
                       const Attend& attend = {}, int64_t position = 0) const = 0;
  virtual OutputMetrics output_metrics() const = 0;  // nullptr where there is no cache
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual at::Device device() const = 0;
  virtual const WeightSource& weights() const = 0;
  virtual std::unique_ptr<Tokenizer> tokenizer() const = 0;  // the one that came with the checkpoint
  // Names and shapes of a layer's tensors.
  virtual std::map<std::string, std::vector<int64_t>> layer_tensors(int layer) const = 0;
  // Before any layer runs: the longest sequence, for the rotary table. More than the model's context is
  // std::invalid_argument.
  virtual void reserve_positions(int64_t positions) = 0;
  virtual at::Tensor embed(std::span<const int32_t> ids) const = 0;       // (T, hidden) float32
  virtual std::unique_ptr<DecoderLayer> load_layer(int layer) const = 0;  // reads and dequantises
  virtual at::Tensor logits(const at::Tensor& hidden) const = 0;  // final norm and lm_head, float32 (T, V)
};

class HfConfig;
struct TransformerSpec;
struct FamilyInfo {
  std::string_view name;          // "llama"
  std::string_view model_type;    // of config.json
  std::string_view architecture;  // general.architecture of GGUF files; "" where there are none of its own
  std::string_view summary;
  TransformerSpec (*from_hf)(const HfConfig& config);
  TransformerSpec (*from_gguf)(const GgufFile& file);  // nullptr with ""
};
std::span<const FamilyInfo> family_table();
// A GGUF file, or a directory with config.json, .safetensors and tokenizer.json. An unknown architecture or a
// path that is no model is std::invalid_argument with the known ones.
std::unique_ptr<Model> open_model(const std::filesystem::path& path, Precision precision,
                                  at::Device device = at::kCPU);

}  // namespace oscar
