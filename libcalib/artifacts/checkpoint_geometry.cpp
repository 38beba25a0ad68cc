#include "libcalib/artifacts/checkpoint_geometry.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"

namespace oscar {

CheckpointGeometry read_geometry(const std::filesystem::path& model) {
  const auto path = model / "config.json";
  if (!std::filesystem::exists(path))
    throw invalid("{}: expected a checkpoint directory with config.json", model.string());
  const auto root = nlohmann::json::parse(read_text(path, size_t{16} << 20), nullptr, false);
  if (!root.is_object()) throw failure("{}: is not a JSON object", path.string());
  const auto& config =
      root.contains("text_config") && root["text_config"].is_object() ? root["text_config"] : root;
  const auto number = [&](const char* key, int fallback) {
    const auto entry = config.find(key);
    if (entry == config.end() || entry->is_null()) {
      if (fallback > 0) return fallback;
      throw invalid("{}: '{}' is missing", path.string(), key);
    }
    if (!entry->is_number_integer() || entry->get<int64_t>() <= 0 || entry->get<int64_t>() > (1 << 20))
      throw failure("{}: '{}': expected a positive integer, found {}", path.string(), key, entry->dump());
    return entry->get<int>();
  };
  CheckpointGeometry g;
  g.q_heads = number("num_attention_heads", 0);
  g.kv_heads = number("num_key_value_heads", g.q_heads);
  g.layers = number("num_hidden_layers", 0);
  const bool stated = config.contains("head_dim") && !config["head_dim"].is_null();
  g.head_dim = stated ? number("head_dim", 0) : number("hidden_size", 0) / g.q_heads;
  if (g.q_heads % g.kv_heads)
    throw failure("{}: {} query heads are no multiple of {} KV heads", path.string(), g.q_heads, g.kv_heads);
  const auto flag = [&](const char* key) {
    return config.contains(key) && config[key].is_boolean() && config[key].get<bool>();
  };
  // Families whose layers always have one; their configurations need not say so.
  const auto type = config.value("model_type", nlohmann::json());
  const bool gated = type == "qwen3_next" || type == "qwen3_5_text" || type == "qwen3_5_moe_text";
  g.output_gate = gated || flag("attn_output_gate") || flag("use_gated_attention");
  g.mla = config.contains("kv_lora_rank") && !config["kv_lora_rank"].is_null();
  for (const auto* each : {&root, &config}) {
    const auto quantisation = each->find("quantization_config");
    if (quantisation != each->end() && quantisation->is_object() &&
        quantisation->contains("weight_block_size"))
      g.block_scales |= !(*quantisation)["weight_block_size"].is_null();
  }
  return g;
}

AttentionName attention_name(std::string_view tensor) {
  constexpr std::string_view layers = "layers.", attention = ".self_attn.";
  const auto begin = tensor.rfind(layers, tensor.find(attention));
  if (tensor.find(attention) == tensor.npos || begin == tensor.npos ||
      (begin > 0 && tensor[begin - 1] != '.'))
    return {};
  for (const char* other : {"vision", "visual", "audio", "encoder.", "mtp."}) {
    if (tensor.substr(0, begin).find(other) != tensor.npos) return {};
  }
  int layer = -1;
  const char* first = tensor.data() + begin + layers.size();
  const auto [end, error] = std::from_chars(first, tensor.data() + tensor.size(), layer);
  const auto rest = tensor.substr(static_cast<size_t>(end - tensor.data()));
  if (error != std::errc() || layer < 0 || !rest.starts_with(attention)) return {};
  return {layer, rest.substr(attention.size())};
}

}  // namespace oscar
