// What a config.json says and leaves out, as the classes of transformers have it: each line was a difference that
// tests/golden/random_families.py found, or a refusal in the place of one.
#include "formats/error.h"
#include "libdump/models/families.h"
#include "libdump/models/model.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

TransformerSpec spec_of(const std::string& json) {
  const test::TempDir folder;
  test::write(folder / "config.json", json);
  const HfConfig config(folder.path());
  for (const FamilyInfo& family : family_table()) {
    if (family.model_type != config.model_type()) continue;
    TransformerSpec spec = family.from_hf(config);
    finish(spec);
    return spec;
  }
  throw std::logic_error(json);
}

TEST(HfConfig, AbsentKeysAreThoseOfTheClass) {
  // All there is in the text_config of gemma-3-4b-it.
  const auto gemma = spec_of(R"({"model_type": "gemma3", "vision_config": {}, "text_config": {
    "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})");
  EXPECT_EQ(gemma.config.vocabulary, 262208);
  EXPECT_EQ(gemma.config.context, 131072);
  EXPECT_EQ(gemma.layers[5].attention.q_heads, 8);
  EXPECT_EQ(gemma.layers[5].attention.kv_heads, 4);
  EXPECT_EQ(gemma.layers[5].attention.dim_k, 256);
  EXPECT_EQ(gemma.layers[5].attention.sliding_window, 0);
  EXPECT_EQ(gemma.layers[4].attention.sliding_window, 1024);
  EXPECT_EQ(gemma.config.ropes[0].base, 1e6);
  EXPECT_EQ(gemma.config.ropes[0].factor, 8);
  EXPECT_EQ(gemma.config.ropes[1].base, 1e4);
  EXPECT_EQ(gemma.activation, Activation::GeluTanh);

  const auto glm = spec_of(R"({"model_type": "glm4"})");
  EXPECT_EQ(glm.config.norm_eps, 1.5625e-7);
  EXPECT_EQ(glm.config.ropes[0].dim, 64);
  EXPECT_TRUE(glm.layers[0].qkv_bias);
  const auto mixtral = spec_of(R"({"model_type": "mixtral"})");
  EXPECT_EQ(mixtral.config.ropes[0].base, 1e6);
  EXPECT_EQ(mixtral.config.norm_eps, 1e-5);
  EXPECT_EQ(mixtral.layers[0].attention.kv_heads, 8);
  EXPECT_EQ(spec_of(R"({"model_type": "olmo2"})").config.norm_eps, 1e-5);
  EXPECT_EQ(spec_of(R"({"model_type": "smollm3"})").config.ropes[0].base, 2e6);
  EXPECT_EQ(spec_of(R"({"model_type": "minimax_m2"})").config.ropes[0].base, 5e6);
  EXPECT_EQ(spec_of(R"({"model_type": "phi3"})").config.norm_eps, 1e-5);
  const auto oss = spec_of(R"({"model_type": "gpt_oss"})");
  EXPECT_EQ(oss.config.ropes[0].scaling, "yarn");
  EXPECT_EQ(oss.config.ropes[0].factor, 32);
  EXPECT_FALSE(oss.config.ropes[0].truncate);
}

TEST(HfConfig, NullIsNotAbsent) {
  EXPECT_EQ(spec_of(R"({"model_type": "mistral"})").layers[0].attention.sliding_window, 4096);
  const auto none =
      spec_of(R"({"model_type": "mistral", "sliding_window": null, "num_key_value_heads": null})");
  EXPECT_EQ(none.layers[0].attention.sliding_window, 0);
  EXPECT_EQ(none.layers[0].attention.kv_heads, 32);
}

TEST(HfConfig, ARampOfYarnIsTruncatedUnlessTheFileSaysOtherwise) {
  const auto truncates = [](const std::string& field) {
    return spec_of(fmt::format(R"({{"model_type": "qwen2", "max_position_embeddings": 32768,
      "rope_scaling": {{"type": "yarn", "factor": 4.0{}}}}})",
                               field))
        .config.ropes[0]
        .truncate;
  };
  EXPECT_TRUE(truncates(""));
  EXPECT_TRUE(truncates(R"(, "truncate": true)"));
  EXPECT_FALSE(truncates(R"(, "truncate": false)"));
  EXPECT_FALSE(truncates(R"(, "truncate": null)")) << "transformers: not true";
}

TEST(HfConfig, OtherNamesOfExperts) {
  EXPECT_EQ(spec_of(R"({"model_type": "qwen3_moe", "num_local_experts": 16})").layers[0].moe.experts, 16);
  EXPECT_EQ(spec_of(R"({"model_type": "glm4_moe", "head_dim": 128, "num_local_experts": 16})").layers[1].moe.experts, 16);
  EXPECT_EQ(spec_of(R"({"model_type": "gpt_oss", "experts_per_token": 3})").layers[0].moe.top, 3);
  // Qwen3.5 always makes the weights sum to 1.
  EXPECT_TRUE(
      spec_of(R"({"model_type": "qwen3_5_moe_text", "norm_topk_prob": false})").layers[0].moe.normalise);
}

TEST(HfConfig, WindowsOfLayers) {
  const auto qwen = spec_of(R"({"model_type": "qwen2", "use_sliding_window": true})");
  EXPECT_EQ(qwen.layers[27].attention.sliding_window, 0);
  EXPECT_EQ(qwen.layers[28].attention.sliding_window, 4096);
  // Of layers without positions alone.
  const auto smol = spec_of(R"({"model_type": "smollm3", "use_sliding_window": true, "sliding_window": 50})");
  EXPECT_EQ(smol.layers[2].attention.sliding_window, 0);
  EXPECT_EQ(smol.layers[3].attention.sliding_window, 50);
}

TEST(HfConfig, GemmaReadsHiddenActivationAlone) {
  EXPECT_EQ(spec_of(R"({"model_type": "gemma2", "hidden_act": "gelu"})").activation, Activation::GeluTanh);
  EXPECT_EQ(spec_of(R"({"model_type": "gemma2", "hidden_activation": "silu"})").activation, Activation::Silu);
}

TEST(HfConfig, ContextOfScaledPositions) {
  const auto context = [](const char* scaling) {
    return spec_of(fmt::format(R"({{"model_type": "qwen2", "max_position_embeddings": 32768, "rope_scaling": {}}})",
                               scaling))
        .config.context;
  };
  EXPECT_EQ(context(R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})"), 131072);
  EXPECT_EQ(context(R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192})"), 32768);
  EXPECT_EQ(context(R"({"type": "linear", "factor": 2.0})"), 65536);
  EXPECT_EQ(context("null"), 32768);
}

TEST(HfConfig, WhatWouldBeComputedWronglyIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model_type": "llama", "partial_rotary_factor": 0.5})", "rotates whole heads"},
      {R"({"model_type": "glm4", "partial_rotary_factor": 0.2})", "25 rotary dims"},  // cut, not rounded to 26
      {R"({"model_type": "minimax_m2", "rotary_dim": 64, "partial_rotary_factor": 1.0})", "makes them 128"},
      {R"({"model_type": "qwen2", "is_causal": false})", "attention must be causal"},
      {R"({"model_type": "llama", "use_bidirectional_attention": true})", "attention must be causal"},
      {R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0},
          "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})",
       "expected one of them"},
      {R"({"model_type": "qwen3", "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}}})",
       "each kind of layer"},
      {R"({"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})",
       "of full_attention and of sliding_attention"},
      {R"({"model_type": "llama", "rope_scaling": {"factor": 2.0}})", "no 'rope_type'"},
      {R"({"model_type": "llama", "rope_scaling": {"type": 3, "factor": 2.0}})", "'type' is not a text"},
      {R"({"model_type": "llama", "rope_scaling": "linear"})", "expected an object"},
      {R"({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0})", "transformers ignores it"},
      {R"({"model_type": "phi3", "sliding_window": 40, "num_hidden_layers": 1, "layer_types": ["full_attention"]})",
       "every layer of this family sliding_attention"},
      {R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5})", "5 of 4 experts"},
      {R"({"model_type": "glm4_moe", "scoring_func": "softmax"})", "by a sigmoid"},
      {R"({"model_type": "qwen3_5_text", "hidden_act": "gelu_pytorch_tanh"})", "with silu only"},
  };
  for (const auto& [json, said] : cases) {
    try {
      spec_of(json);
      ADD_FAILURE() << json << " was not refused";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << json << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace oscar
