#include "libdump/models/gguf_config.h"

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "libcalib/artifacts/rotary_order.h"

namespace oscar {

int64_t need_positive(const GgufFile& file, const std::string& key) {
  const auto value = file.integer(key);
  if (!value || *value <= 0)
    throw failure("{}: metadata {}: expected a positive integer, found {}", file.file()->path().string(), key,
                  value ? std::to_string(*value) : "nothing");
  if (*value > (int64_t{1} << 30))
    throw failure("{}: metadata {}: {} is not plausible", file.file()->path().string(), key, *value);
  return *value;
}

int64_t layers_after(const GgufFile& file) {
  const auto key = file.text("general.architecture").value_or("") + ".nextn_predict_layers";
  const auto count = file.integer(key).value_or(0);
  if (count < 0)
    throw failure("{}: metadata {}: {} is not plausible", file.file()->path().string(), key, count);
  return count;
}

namespace {

// By what each frequency is divided.
std::vector<double> divisors_of(const GgufFile& file, const GgufTensor& tensor, int dim) {
  const auto path = file.file()->path().string();
  if (tensor.type->name != "F32" || tensor.shape != Shape{dim / 2})
    throw failure("{}: {}: expected F32 [{}], found {} {}", path, tensor.name, dim / 2, tensor.type->name,
                  to_string(tensor.shape));
  auto divisors = Tensor{DType::F32, tensor.shape, tensor.bytes, file.file()}.doubles();
  for (const double divisor : divisors) {
    if (!(divisor > 0)) throw failure("{}: {} holds {}", path, tensor.name, divisor);
  }
  return divisors;
}

RopeConfig rope_of(const GgufFile& file, const std::string& architecture, int dim_k) {
  const auto path = file.file()->path().string();
  const auto key = [&](const char* rest) { return architecture + ".rope." + rest; };
  const auto number = [&](const char* rest, double otherwise) {
    return file.number(key(rest)).value_or(otherwise);
  };
  RopeConfig rope;
  rope.base = number("freq_base", 10000);
  rope.dim = static_cast<int>(file.integer(key("dimension_count")).value_or(dim_k));
  rope.original_context = file.integer(key("scaling.original_context_length"))
                              .value_or(file.integer(architecture + ".context_length").value_or(0));
  if (const auto scaling = file.text(key("scaling.type")).value_or("none"); scaling == "linear") {
    rope.scaling = scaling;
    rope.factor = number("scaling.factor", 1);
  } else if (scaling == "yarn") {
    for (const char* other :
         {"scaling.yarn_log_multiplier", "scaling.yarn_ext_factor", "scaling.yarn_attn_factor"}) {
      if (number(other, 1) != 1) throw invalid("{}: {} is not supported", path, key(other));
    }
    rope.scaling = scaling;
    rope.factor = number("scaling.factor", 1);
    rope.low_frequency = number("scaling.yarn_beta_slow", 1);
    rope.high_frequency = number("scaling.yarn_beta_fast", 32);
    rope.attention_factor =
        number("scaling.attn_factor", 1) * (rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1);
    if (!(rope.factor > 0) || rope.original_context <= 0)
      throw failure("{}: {}: needs a positive scaling.factor and scaling.original_context_length", path,
                    key("scaling.type"));
  } else if (scaling != "none" && scaling != "longrope") {
    throw invalid("{}: {} '{}' is not supported; known: none, linear, yarn, longrope", path,
                  key("scaling.type"), scaling);
  }
  const GgufTensor *divisors = file.find("rope_freqs.weight"),
                   *brief = file.find("rope_factors_short.weight"),
                   *extended = file.find("rope_factors_long.weight");
  if (divisors) {
    rope.scaling = "divisors";
    rope.divisors = divisors_of(file, *divisors, rope.dim);
  } else if (brief && extended) {
    rope.scaling = "longrope";
    rope.divisors = divisors_of(file, *brief, rope.dim);
    rope.long_divisors = divisors_of(file, *extended, rope.dim);
    rope.attention_factor = number("scaling.attn_factor", 1);
  }
  return rope;
}

// Whose second norm the converter calls post_attention_norm though it stands before the MLP.
bool renames_mlp_norm(std::string_view architecture) {
  constexpr std::string_view kArchitectures[] = {"gpt-oss", "glm4moe", "qwen3next", "qwen35", "qwen35moe"};
  return std::ranges::find(kArchitectures, architecture) != std::end(kArchitectures);
}

// The tensors of a layer that keeps a state.
void add_delta(std::map<std::string, GgufName>& names, const LayerSpec& layer) {
  const int id = layer.attention.layer;
  for (const auto& [part, name] : {std::pair{"in_proj_qkvz.weight", "ssm_in.weight"},
                                   {"in_proj_qkv.weight", "attn_qkv.weight"},
                                   {"in_proj_z.weight", "attn_gate.weight"},
                                   {"in_proj_ba.weight", "ssm_ba.weight"},
                                   {"in_proj_b.weight", "ssm_beta.weight"},
                                   {"in_proj_a.weight", "ssm_alpha.weight"},
                                   {"conv1d.weight", "ssm_conv1d.weight"},
                                   {"A_log", "ssm_a"},
                                   {"dt_bias", "ssm_dt.bias"},
                                   {"norm.weight", "ssm_norm.weight"},
                                   {"out_proj.weight", "ssm_out.weight"}})
    names[layer_tensor(id, std::string("linear_attn.") + part)] = {fmt::format("blk.{}.{}", id, name), 0,
                                                                   std::string_view(part) == "A_log"};
}

}  // namespace

TransformerSpec common_gguf(const GgufFile& file, bool experts) {
  const auto path = file.file()->path().string();
  TransformerSpec spec;
  ModelConfig& config = spec.config;
  config.path = path;
  config.architecture = file.text("general.architecture").value_or("");
  config.name = file.text("general.name").value_or("");
  const auto key = [&](const char* rest) { return config.architecture + "." + rest; };
  const auto layers = need_positive(file, key("block_count")) - layers_after(file);
  if (layers <= 0)
    throw failure("{}: metadata {}: all {} layers are for further tokens ({})", path, key("block_count"),
                  layers_after(file), key("nextn_predict_layers"));
  if (layers > 1 << 13)
    throw failure("{}: metadata {}: {} is not plausible", path, key("block_count"), layers);
  config.hidden = static_cast<int>(need_positive(file, key("embedding_length")));
  if (!experts || file.metadata().contains(key("feed_forward_length")))  // none where all are experts
    config.intermediate = static_cast<int>(need_positive(file, key("feed_forward_length")));
  config.context = file.integer(key("context_length")).value_or(0);
  config.norm_eps = file.number(key("attention.layer_norm_rms_epsilon")).value_or(1e-5);
  config.tied_embeddings = !file.find("output.weight");
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    throw failure("{}: tensor token_embd.weight: expected a matrix, found {}", path,
                  embedding ? to_string(embedding->shape) : "nothing");
  config.vocabulary = static_cast<int>(embedding->shape[0]);
  if (!experts && file.integer(key("expert_count")).value_or(0) > 0)
    throw invalid("{}: a mixture of experts ({}) is not supported", path, key("expert_count"));

  LayerSpec layer;
  LayerShape& shape = layer.attention;
  shape.q_heads = static_cast<int>(need_positive(file, key("attention.head_count")));
  shape.kv_heads = static_cast<int>(file.integer(key("attention.head_count_kv")).value_or(shape.q_heads));
  shape.dim_k =
      static_cast<int>(file.integer(key("attention.key_length")).value_or(config.hidden / shape.q_heads));
  shape.dim_v = static_cast<int>(file.integer(key("attention.value_length")).value_or(shape.dim_k));
  if (shape.dim_k <= 0) throw failure("{}: head dim {} is not a positive multiple of 4", path, shape.dim_k);
  shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.dim_k));
  config.ropes = {rope_of(file, config.architecture, shape.dim_k)};
  for (int i = 0; i < layers; ++i) {
    shape.layer = i;
    spec.layers.push_back(layer);
  }
  return spec;
}

MoeSpec experts_gguf(const GgufFile& file, const TransformerSpec& spec) {
  const auto key = [&](const char* rest) { return spec.config.architecture + "." + rest; };
  MoeSpec moe;
  const auto last = fmt::format("blk.{}.", spec.layers.size() - 1);
  moe.layout = file.find(last + "ffn_gate_up_exps.weight") ? ExpertLayout::Stacked : ExpertLayout::Parts;
  moe.experts = static_cast<int>(need_positive(file, key("expert_count")));
  moe.top = static_cast<int>(need_positive(file, key("expert_used_count")));
  moe.intermediate = static_cast<int>(file.metadata().contains(key("expert_feed_forward_length")) ||
                                              spec.config.intermediate == 0
                                          ? need_positive(file, key("expert_feed_forward_length"))
                                          : spec.config.intermediate);
  if (moe.top > moe.experts)
    throw failure("{}: {} experts a token of {}", spec.config.path, moe.top, moe.experts);
  if (file.integer(key("expert_group_count")).value_or(1) > 1)
    throw invalid("{}: {}: experts in groups are not supported", spec.config.path, key("expert_group_count"));
  constexpr int64_t kSoftmax = 1, kSigmoid = 2, kSoftmaxOfChosen = 3;
  const auto gating = file.integer(key("expert_gating_func")).value_or(kSoftmax);
  if (gating != kSoftmax && gating != kSigmoid && gating != kSoftmaxOfChosen)
    throw invalid("{}: {} {} is not supported", spec.config.path, key("expert_gating_func"), gating);
  moe.sigmoid = gating == kSigmoid;
  moe.correction = file.find(last + "exp_probs_b.bias") != nullptr;
  if (moe.sigmoid) moe.normalise = file.boolean(key("expert_weights_norm")).value_or(true);
  moe.scale = file.number(key("expert_weights_scale")).value_or(1);
  return moe;
}

std::map<std::string, GgufName> gguf_names(const TransformerSpec& spec) {
  const bool renames = renames_mlp_norm(spec.config.architecture);
  const bool interleaved = rotary_order(spec.config.architecture) == RotaryOrder::Interleaved;
  std::map<std::string, GgufName> names{{"model.embed_tokens.weight", {"token_embd.weight"}},
                                        {"model.norm.weight", {"output_norm.weight"}},
                                        {"lm_head.weight", {"output.weight"}}};
  for (const auto& layer : spec.layers) {
    const auto& a = layer.attention;
    const auto add = [&](const std::string& part, const std::string& name, int64_t heads = 0) {
      for (const char* kind : {".weight", ".bias"})
        names[layer_tensor(a.layer, part + kind)] = {fmt::format("blk.{}.{}{}", a.layer, name, kind), heads};
    };
    for (const auto& [norm, name] : {std::pair{spec.before_attention, "attn_norm"},
                                     {spec.after_attention, "post_attention_norm"},
                                     {spec.before_mlp, renames ? "post_attention_norm" : "ffn_norm"},
                                     {spec.after_mlp, "post_ffw_norm"}}) {
      if (!norm.empty()) add(norm, name);
    }
    if (layer.recurrent()) add_delta(names, layer);
    add("self_attn.q_proj", "attn_q", interleaved ? a.q_heads : 0);
    add("self_attn.k_proj", "attn_k", interleaved ? a.kv_heads : 0);
    add("self_attn.v_proj", "attn_v");
    add("self_attn.qkv_proj", "attn_qkv");
    add("self_attn.o_proj", "attn_output");
    add("self_attn.q_norm", "attn_q_norm");
    add("self_attn.k_norm", "attn_k_norm");
    add("mlp.gate_proj", "ffn_gate");
    add("mlp.up_proj", "ffn_up");
    add("mlp.gate_up_proj", "ffn_up");
    add("mlp.down_proj", "ffn_down");
    if (layer.sinks)
      names[layer_tensor(a.layer, "self_attn.sinks")] = {fmt::format("blk.{}.attn_sinks.weight", a.layer)};
    if (layer.moe.experts == 0) continue;
    const MoeSpec& moe = layer.moe;
    add(moe.stem + "." + moe.router, "ffn_gate_inp");
    names[layer_tensor(a.layer, moe.correction_name)] = {fmt::format("blk.{}.exp_probs_b.bias", a.layer)};
    names[layer_tensor(a.layer, moe.stem + ".experts.gate_up_proj")] = {
        fmt::format("blk.{}.ffn_gate_up_exps.weight", a.layer)};
    add(moe.stem + ".shared_expert_gate", "ffn_gate_inp_shexp");
    for (const char* part : {"gate", "up", "down"}) {
      const auto stem = layer_tensor(a.layer, fmt::format("{}.experts.{}_proj", moe.stem, part));
      names[stem] = {fmt::format("blk.{}.ffn_{}_exps.weight", a.layer, part)};
      names[stem + "_bias"] = {fmt::format("blk.{}.ffn_{}_exps.bias", a.layer, part)};
      add(fmt::format("{}.{}.{}_proj", moe.stem, moe.shared_name, part), fmt::format("ffn_{}_shexp", part));
    }
  }
  return names;
}

}  // namespace oscar
