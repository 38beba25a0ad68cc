// What the configuration classes of transformers take for keys that a config.json does not have: exporters leave
// out what is usual, and the text_config of a model that sees may have little else than its size.
#include "libdump/models/hf_config.h"

namespace oscar {
namespace {

struct ClassDefaults {
  std::string_view model_type, json;
};
constexpr ClassDefaults kDefaults[] = {
    {"llama", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
      "num_attention_heads": 32, "max_position_embeddings": 2048})"},
    {"mistral", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
      "sliding_window": 4096})"},
    {"qwen2", R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768,
      "sliding_window": 4096, "max_window_layers": 28})"},
    {"qwen3", R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
      "sliding_window": 4096, "max_window_layers": 28})"},
    {"smollm3", R"({"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
      "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
      "rope_theta": 2e6})"},
    {"gemma2", R"({"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
      "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096})"},
    {"gemma3_text", R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
      "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
      "max_position_embeddings": 131072, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
      "rope_local_base_freq": 1e4})"},
    {"phi3", R"({"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
      "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
      "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0})"},
    {"olmo2", R"({"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
      "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5})"},
    {"granite", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
      "num_attention_heads": 32, "max_position_embeddings": 2048})"},
    {"qwen3_moe", R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
      "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768,
      "sliding_window": 4096, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768})"},
    {"mixtral", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2})"},
    {"glm4", R"({"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
      "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
      "rms_norm_eps": 1.5625e-7, "attention_bias": true, "partial_rotary_factor": 0.5})"},
    {"glm4_moe", R"({"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
      "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "n_routed_experts": 128, "num_experts_per_tok": 8,
      "moe_intermediate_size": 1408})"},
    {"minimax_m2", R"({"vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
      "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
      "max_position_embeddings": 196608, "rope_theta": 5e6, "partial_rotary_factor": null, "rotary_dim": null,
      "num_local_experts": 256, "num_experts_per_tok": 8})"},
    {"qwen3_next", R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
      "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
      "max_position_embeddings": 32768, "partial_rotary_factor": 0.25, "num_experts": 512,
      "num_experts_per_tok": 10, "moe_intermediate_size": 512})"},
    {"qwen3_5_text", R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
      "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
      "max_position_embeddings": 32768, "partial_rotary_factor": 0.25})"},
    {"qwen3_5_moe_text", R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40,
      "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768,
      "partial_rotary_factor": 0.25, "num_experts": 256, "num_experts_per_tok": 8,
      "moe_intermediate_size": 512})"},
    {"gpt_oss", R"({"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "num_local_experts": 128, "num_experts_per_tok": 4})"},
};

// A key and another name under which exporters write it.
constexpr std::pair<const char*, const char*> kNames[] = {{"num_experts", "num_local_experts"},
                                                          {"num_local_experts", "num_experts"},
                                                          {"n_routed_experts", "num_local_experts"},
                                                          {"num_experts_per_tok", "experts_per_token"}};

}  // namespace

void HfConfig::fill_in() {
  for (const auto& [model_type, json] : kDefaults) {
    if (model_type == type_) defaults_ = nlohmann::json::parse(json);
  }
  for (const auto& [key, other] : kNames) {
    if (defaults_.contains(key) && !has(key) && has(other)) json_[key] = nlohmann::json(json_[other]);
  }
  for (const auto& [key, value] : defaults_.items()) {
    if (!json_.contains(key)) json_[key] = value;
  }
}

}  // namespace oscar
