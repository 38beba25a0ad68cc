#include "libdump/models/transformer_spec.h"

#include "formats/error.h"

namespace oscar {
namespace {

void add_linear(TensorShapes& shapes, const std::string& stem, int64_t out, int64_t in, bool bias) {
  shapes[stem + ".weight"] = {out, in};
  if (bias) shapes[stem + ".bias"] = {out};
}

void add_experts(TensorShapes& shapes, const LayerSpec& layer, int64_t hidden) {
  const MoeSpec& moe = layer.moe;
  const auto at = [&](const std::string& part) { return layer_tensor(layer.attention.layer, part); };
  add_linear(shapes, at(moe.stem + "." + moe.router), moe.experts, hidden, moe.router_bias);
  if (moe.correction) shapes[at(moe.correction_name)] = {moe.experts};
  const auto add = [&](const std::string& stem, const MoeSpec& names, int64_t width) {
    add_linear(shapes, at(stem + names.gate), width, hidden, false);
    add_linear(shapes, at(stem + names.up), width, hidden, false);
    add_linear(shapes, at(stem + names.down), hidden, width, false);
  };
  if (moe.layout == ExpertLayout::Interleaved) {
    const auto all = at(moe.stem + ".experts.");
    shapes[all + "gate_up_proj"] = {moe.experts, hidden, int64_t{2} * moe.intermediate};
    shapes[all + "gate_up_proj_bias"] = {moe.experts, int64_t{2} * moe.intermediate};
    shapes[all + "down_proj"] = {moe.experts, moe.intermediate, hidden};
    shapes[all + "down_proj_bias"] = {moe.experts, hidden};
  }
  for (int e = 0; moe.layout == ExpertLayout::Each && e < moe.experts; ++e)
    add(fmt::format("{}.experts.{}.", moe.stem, e), moe, moe.intermediate);
  if (moe.layout == ExpertLayout::Parts) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      const auto name = at(moe.stem + ".experts." + part);
      const bool down = std::string_view(part) == "down_proj";
      const int64_t out = down ? hidden : moe.intermediate, in = down ? moe.intermediate : hidden;
      shapes[name] = {moe.experts, out, in};
      if (moe.expert_bias) shapes[name + "_bias"] = {moe.experts, out};
    }
  }
  if (moe.layout == ExpertLayout::Stacked) {
    const auto all = at(moe.stem + ".experts.");
    shapes[all + "gate_up_proj"] = {moe.experts, int64_t{2} * moe.intermediate, hidden};
    shapes[all + "down_proj"] = {moe.experts, hidden, moe.intermediate};
  }
  if (moe.shared > 0) add(moe.stem + "." + moe.shared_name + ".", MoeSpec{}, moe.shared);
  if (moe.shared_gate) shapes[at(moe.stem + ".shared_expert_gate.weight")] = {1, hidden};
}

void add_delta(TensorShapes& shapes, const LayerSpec& layer, int64_t hidden) {
  const DeltaSpec& delta = layer.delta;
  const auto at = [&](const char* part) {
    return layer_tensor(layer.attention.layer, std::string("linear_attn.") + part);
  };
  const int64_t values = delta.v_heads * delta.dim_v, heads = delta.v_heads;
  if (delta.fused) {
    shapes[at("in_proj_qkvz.weight")] = {delta.channels() + values, hidden};
  } else {
    shapes[at("in_proj_qkv.weight")] = {delta.channels(), hidden};
    shapes[at("in_proj_z.weight")] = {values, hidden};
  }
  if (delta.fused_gates)
    shapes[at("in_proj_ba.weight")] = {2 * heads, hidden};
  else
    shapes[at("in_proj_b.weight")] = shapes[at("in_proj_a.weight")] = {heads, hidden};
  shapes[at("conv1d.weight")] = {delta.channels(), 1, delta.kernel};
  shapes[at("A_log")] = shapes[at("dt_bias")] = {heads};
  shapes[at("norm.weight")] = {delta.dim_v};
  shapes[at("out_proj.weight")] = {hidden, values};
}

void add_attention(TensorShapes& shapes, const TransformerSpec& spec, const LayerSpec& layer) {
  const auto& a = layer.attention;
  const int64_t hidden = spec.config.hidden, q = int64_t{a.q_heads} * a.dim_k,
                k = int64_t{a.kv_heads} * a.dim_k, v = int64_t{a.kv_heads} * a.dim_v;
  const auto at = [&](const std::string& part) { return layer_tensor(a.layer, part); };
  if (spec.fused_qkv) {
    add_linear(shapes, at("self_attn.qkv_proj"), q + k + v, hidden, layer.qkv_bias);
  } else {
    add_linear(shapes, at("self_attn.q_proj"), layer.output_gate ? 2 * q : q, hidden, layer.qkv_bias);
    add_linear(shapes, at("self_attn.k_proj"), k, hidden, layer.qkv_bias);
    add_linear(shapes, at("self_attn.v_proj"), v, hidden, layer.qkv_bias);
  }
  add_linear(shapes, at("self_attn.o_proj"), hidden, int64_t{a.q_heads} * a.dim_v, layer.out_bias);
  if (layer.sinks) shapes[at("self_attn.sinks")] = {a.q_heads};
  if (layer.qk_norm != QkNorm::None) {
    const bool head = layer.qk_norm == QkNorm::Head;
    shapes[at("self_attn.q_norm.weight")] = {head ? a.dim_k : q};
    shapes[at("self_attn.k_norm.weight")] = {head ? a.dim_k : k};
  }
}

void add_layer(TensorShapes& shapes, const TransformerSpec& spec, const LayerSpec& layer) {
  const auto& a = layer.attention;
  const int64_t hidden = spec.config.hidden, ff = spec.config.intermediate;
  const auto at = [&](const std::string& part) { return layer_tensor(a.layer, part); };
  for (const auto* norm :
       {&spec.before_attention, &spec.after_attention, &spec.before_mlp, &spec.after_mlp}) {
    if (!norm->empty()) shapes[at(*norm + ".weight")] = {hidden};
  }
  if (layer.recurrent())
    add_delta(shapes, layer, hidden);
  else
    add_attention(shapes, spec, layer);
  if (layer.moe.experts > 0) {
    add_experts(shapes, layer, hidden);
  } else {
    if (spec.fused_gate_up) {
      add_linear(shapes, at("mlp.gate_up_proj"), 2 * ff, hidden, spec.mlp_bias);
    } else {
      add_linear(shapes, at("mlp.gate_proj"), ff, hidden, spec.mlp_bias);
      add_linear(shapes, at("mlp.up_proj"), ff, hidden, spec.mlp_bias);
    }
    add_linear(shapes, at("mlp.down_proj"), hidden, ff, spec.mlp_bias);
  }
}

}  // namespace

std::string layer_tensor(int layer, const std::string& part) {
  return fmt::format("model.layers.{}.{}", layer, part);
}

TensorShapes expected_layer_tensors(const TransformerSpec& spec, int layer) {
  TensorShapes shapes;
  add_layer(shapes, spec, spec.layers.at(static_cast<size_t>(layer)));
  return shapes;
}

TensorShapes expected_tensors(const TransformerSpec& spec) {
  const int64_t hidden = spec.config.hidden, vocabulary = spec.config.vocabulary;
  TensorShapes shapes{{"model.embed_tokens.weight", {vocabulary, hidden}}, {"model.norm.weight", {hidden}}};
  if (!spec.config.tied_embeddings) shapes["lm_head.weight"] = {vocabulary, hidden};
  for (const auto& layer : spec.layers) add_layer(shapes, spec, layer);
  return shapes;
}

void finish(TransformerSpec& spec) {
  ModelConfig& config = spec.config;
  config.layers = static_cast<int>(spec.layers.size());
  constexpr int64_t kMostExperts = 1 << 18;  // in all layers: a lie about them must not become memory
  int64_t experts = 0;
  for (const auto& layer : spec.layers) experts += layer.moe.experts;
  if (experts > kMostExperts)
    throw failure("{}: {} experts in {} layers: expected {} at most", config.path, experts, config.layers,
                  kMostExperts);
  for (const auto& layer : spec.layers) {
    const auto& a = layer.attention;
    const auto where = fmt::format("{}: layer {}", config.path, a.layer);
    if (layer.moe.experts > 0 && (layer.moe.top <= 0 || layer.moe.top > layer.moe.experts))
      throw failure("{}: a token cannot take {} of {} experts", where, layer.moe.top, layer.moe.experts);
    if (layer.recurrent()) {
      const DeltaSpec& d = layer.delta;
      if (d.v_heads <= 0 || d.v_heads % d.k_heads != 0 || d.dim_k <= 0 || d.dim_v <= 0 || d.kernel <= 0)
        throw failure("{}: {} value heads of {} cannot share {} key heads of {}, or a convolution of {} taps",
                      where, d.v_heads, d.dim_v, d.k_heads, d.dim_k, d.kernel);
      continue;
    }
    if (a.kv_heads <= 0 || a.q_heads % a.kv_heads != 0)
      throw failure("{}: {} query heads cannot share {} KV heads", where, a.q_heads, a.kv_heads);
    if (a.dim_k <= 0 || a.dim_k % 4 != 0 || a.dim_v <= 0 || a.dim_v % 4 != 0)
      throw failure("{}: head dims {} and {} are not positive multiples of 4", where, a.dim_k, a.dim_v);
    if (layer.rope < 0) continue;
    const int dim = config.ropes.at(static_cast<size_t>(layer.rope)).dim;
    if (dim <= 0 || dim % 2 != 0 || dim > a.dim_k)
      throw failure("{}: {} rotary dims do not fit a head of {}", where, dim, a.dim_k);
  }
  for (const auto& layer : spec.layers) {
    if (!layer.recurrent()) config.attention.push_back(layer.attention);
  }
}

}  // namespace oscar
