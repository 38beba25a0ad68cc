#include <ATen/ATen.h>

#include "formats/error.h"
#include "libdump/models/layer_parts.h"
#include "libdump/torch_device.h"

namespace oscar {

at::Tensor LayerParts::load(const std::string& part) const {
  const auto name = layer_tensor(layer_, part);
  return weights_.load_on(device_, name, shapes_.at(name));
}

at::Tensor LayerParts::load_part(const std::string& part, int64_t index) const {
  const auto name = layer_tensor(layer_, part);
  return to_device(weights_.load_part(name, shapes_.at(name), index), device_);
}

at::Tensor LayerParts::norm(const std::string& name) const {
  if (name.empty()) return {};
  const at::Tensor weight = load(name + ".weight");
  return spec_.norm_offset == 0 ? weight : weight + spec_.norm_offset;
}

Linear LayerParts::linear(const std::vector<std::string>& names, Precision precision) const {
  std::vector<at::Tensor> matrices, biases;
  for (const auto& name : names) {
    matrices.push_back(load(name + ".weight"));
    if (has(name + ".bias")) biases.push_back(load(name + ".bias"));
  }
  if (!biases.empty() && biases.size() != names.size())
    throw failure("layer {}: some of its projections have a bias and others none", layer_);
  return {matrices.size() == 1 ? matrices[0] : at::cat(matrices), precision,
          biases.empty() ? at::Tensor() : at::cat(biases)};
}

namespace {

class GatedMlp : public Mlp {
 public:
  GatedMlp(const LayerParts& parts, const std::vector<std::string>& up, const std::string& down,
           Precision precision)
      : GatedMlp(parts, parts.linear(up, precision), parts.linear({down}, precision), precision) {}
  GatedMlp(const LayerParts& parts, Linear gate_up, Linear down, Precision precision)
      : gate_up_(std::move(gate_up)),
        down_(std::move(down)),
        activation_(parts.spec().activation),
        alpha_(parts.layer().moe.swiglu_alpha),
        limit_(parts.layer().moe.swiglu_limit),
        precision_(precision) {}
  at::Tensor operator()(at::Tensor x) const override { return apply(activation(std::move(x), precision_)); }
  // Of what activation() made.
  at::Tensor apply(const at::Tensor& x) const {
    const at::Tensor gate_up = gate_up_(x);
    return down_(activation(gated(gate_up), precision_));
  }

 private:
  at::Tensor gated(const at::Tensor& gate_up) const {
    if (limit_ > 0) return clamped_swiglu(gate_up, alpha_, limit_);
    return activation_ == Activation::Silu ? swiglu(gate_up) : geglu(gate_up);
  }

  Linear gate_up_, down_;
  Activation activation_;
  double alpha_, limit_;
  Precision precision_;
};

// The router is float32 in every precision, as the references have it: a rounded score would pick other
// experts.
class Experts : public Mlp {
 public:
  Experts(const LayerParts& parts, Precision precision) : moe_(parts.layer().moe), precision_(precision) {
    const std::string& stem = moe_.stem;
    router_ = parts.load(stem + "." + moe_.router + ".weight");
    if (moe_.router_bias) router_bias_ = parts.load(stem + "." + moe_.router + ".bias");
    if (moe_.correction) correction_ = parts.load(moe_.correction_name);
    if (moe_.shared_gate) shared_gate_ = parts.load(stem + ".shared_expert_gate.weight");
    for (int e = 0; e < moe_.experts; ++e) {
      if (moe_.layout != ExpertLayout::Each) {
        experts_.push_back(stored_together(parts, e, precision));
        continue;
      }
      const auto at = [&](const std::string& part) { return fmt::format("{}.experts.{}.{}", stem, e, part); };
      experts_.emplace_back(parts, std::vector{at(moe_.gate), at(moe_.up)}, at(moe_.down), precision);
    }
    if (moe_.shared > 0) {
      const std::string at = stem + "." + moe_.shared_name + ".";
      shared_.emplace(parts, std::vector{at + "gate_proj", at + "up_proj"}, at + "down_proj", precision);
    }
  }

  bool routes() const override { return true; }
  at::Tensor operator()(at::Tensor x) const override {
    const auto [weights, chosen] = route(x);
    at::Tensor shared_gate;
    if (moe_.shared_gate) shared_gate = at::sigmoid(at::linear(x, shared_gate_));
    const at::Tensor in = activation(std::move(x), precision_);
    at::Tensor out = in.is_cpu() ? one_by_one(in, weights, chosen) : sorted(in, weights, chosen);
    if (!shared_) return out;
    const at::Tensor shared = shared_->apply(in).to(at::kFloat);
    return out.add_(shared_gate.defined() ? shared * shared_gate : shared);
  }

 private:
  // Sums in the order of the experts.
  at::Tensor one_by_one(const at::Tensor& in, const at::Tensor& weights, const at::Tensor& chosen) const {
    const int64_t tokens = in.size(0);
    at::Tensor out = at::zeros(in.sizes(), at::kFloat);
    std::vector<std::vector<int64_t>> rows(experts_.size()), slots(experts_.size());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t k = 0; k < moe_.top; ++k) {
        const auto e = static_cast<size_t>(chosen.const_data_ptr<int64_t>()[t * moe_.top + k]);
        rows[e].push_back(t);
        slots[e].push_back(t * moe_.top + k);
      }
    }
    for (size_t e = 0; e < experts_.size(); ++e) {
      if (rows[e].empty()) continue;
      const at::Tensor index = at::tensor(rows[e]), slot = at::tensor(slots[e]);
      at::Tensor part = experts_[e].apply(in.index_select(0, index)).to(at::kFloat);
      part.mul_(weights.view({-1}).index_select(0, slot).unsqueeze(1));
      out.index_add_(0, index, part);
    }
    return out;
  }
  // Sums in the order of the choices. Index additions have no order on a GPU.
  at::Tensor sorted(const at::Tensor& in, const at::Tensor& weights, const at::Tensor& chosen) const {
    const at::Tensor order = at::argsort(chosen.view({-1}), /*stable=*/true);
    const at::Tensor rows = in.index_select(0, order.div(moe_.top, "floor"));
    const at::Tensor counts = to_cpu(at::bincount(chosen.view({-1}), {}, moe_.experts));
    std::vector<at::Tensor> parts;
    int64_t first = 0;
    for (size_t e = 0; e < experts_.size(); ++e) {
      const int64_t count = counts.const_data_ptr<int64_t>()[e];
      if (count > 0) parts.push_back(experts_[e].apply(rows.narrow(0, first, count)));
      first += count;
    }
    const at::Tensor all = at::cat(parts).to(at::kFloat);
    const at::Tensor slots = at::empty_like(all).index_copy_(0, order, all).view({in.size(0), moe_.top, -1});
    return slots.mul(weights.unsqueeze(2)).sum(1);
  }

  static GatedMlp stored_together(const LayerParts& parts, int expert, Precision precision) {
    const std::string all = parts.layer().moe.stem + ".experts.";
    if (parts.layer().moe.layout == ExpertLayout::Stacked)
      return {parts, Linear(parts.load_part(all + "gate_up_proj", expert), precision),
              Linear(parts.load_part(all + "down_proj", expert), precision), precision};
    if (parts.layer().moe.layout == ExpertLayout::Parts) {
      const auto gate_up = [&](const char* kind) {
        return at::cat({parts.load_part(all + "gate_proj" + kind, expert),
                        parts.load_part(all + "up_proj" + kind, expert)});
      };
      const bool bias = parts.layer().moe.expert_bias;
      return {parts, Linear(gate_up(""), precision, bias ? gate_up("_bias") : at::Tensor()),
              Linear(parts.load_part(all + "down_proj", expert), precision,
                     bias ? parts.load_part(all + "down_proj_bias", expert) : at::Tensor()),
              precision};
    }
    const auto apart = [](const at::Tensor& x) {  // gates, then ups
      return at::cat({x.slice(0, 0, {}, 2), x.slice(0, 1, {}, 2)});
    };
    return {parts,
            Linear(apart(parts.load_part(all + "gate_up_proj", expert).t()), precision,
                   apart(parts.load_part(all + "gate_up_proj_bias", expert))),
            Linear(parts.load_part(all + "down_proj", expert).t().contiguous(), precision,
                   parts.load_part(all + "down_proj_bias", expert)),
            precision};
  }

  // (T, top) weights and expert numbers.
  std::pair<at::Tensor, at::Tensor> route(const at::Tensor& x) const {
    const at::Tensor logits = at::linear(x, router_, router_bias_);
    const at::Tensor scores = moe_.sigmoid ? at::sigmoid(logits) : at::softmax(logits, 1);
    const at::Tensor chosen =
        std::get<1>(at::topk(correction_.defined() ? scores + correction_ : scores, moe_.top, 1))
            .contiguous();
    at::Tensor weights = scores.gather(1, chosen);
    if (moe_.normalise) weights = weights / (weights.sum(1, true) + (moe_.sigmoid ? 1e-20 : 0.0));
    return {(weights * moe_.scale).contiguous(), chosen};
  }

  const MoeSpec moe_;
  Precision precision_;
  at::Tensor router_, router_bias_, correction_, shared_gate_;
  std::vector<GatedMlp> experts_;
  std::optional<GatedMlp> shared_;
};

}  // namespace

std::unique_ptr<Mlp> make_mlp(const LayerParts& parts, Precision precision) {
  if (parts.layer().moe.experts > 0) return std::make_unique<Experts>(parts, precision);
  const bool fused = parts.spec().fused_gate_up;
  return std::make_unique<GatedMlp>(parts,
                                    fused ? std::vector<std::string>{"mlp.gate_up_proj"}
                                          : std::vector<std::string>{"mlp.gate_proj", "mlp.up_proj"},
                                    "mlp.down_proj", precision);
}

}  // namespace oscar
