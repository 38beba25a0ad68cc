// The weights of one layer, by their parts.
#pragma once
#include "libdump/layers.h"
#include "libdump/models/transformer_spec.h"
#include "libdump/weights/weight_source.h"

namespace oscar {

class LayerParts {
 public:
  LayerParts(const TransformerSpec& spec, const WeightSource& weights, int layer,
             at::Device device = at::kCPU)
      : spec_(spec),
        weights_(weights),
        shapes_(expected_layer_tensors(spec, layer)),
        layer_(layer),
        device_(device) {}

  const TransformerSpec& spec() const { return spec_; }
  const LayerSpec& layer() const { return spec_.layers.at(static_cast<size_t>(layer_)); }
  bool has(const std::string& part) const { return shapes_.contains(layer_tensor(layer_, part)); }
  // Float32, on the device. WeightSource's.
  at::Tensor load(const std::string& part) const;
  at::Tensor load_part(const std::string& part, int64_t index) const;
  at::Tensor norm(const std::string& name) const;                      // undefined for ""
  // Several projections of one input as one, with their biases where all have one.
  Linear linear(const std::vector<std::string>& names, Precision precision) const;

 private:
  const TransformerSpec& spec_;
  const WeightSource& weights_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  int layer_;
  at::Device device_;
};

// What a layer does after attention: a gated MLP, or experts of which a router picks some for every token.
class Mlp {
 public:
  virtual ~Mlp() = default;
  virtual bool routes() const { return false; }
  // x (T, hidden) normalised, taken over: float32, or from activation() where there is no router; the same
  // shape out.
  virtual at::Tensor operator()(at::Tensor x) const = 0;
};
std::unique_ptr<Mlp> make_mlp(const LayerParts& parts, Precision precision);

}  // namespace oscar
