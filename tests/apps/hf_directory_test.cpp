// Hugging Face directories as a user gives them: whole, and damaged in the ways that downloads are.
#include <fmt/format.h>

#include <random>
#include <regex>

#include "formats/npy.h"
#include "formats/safetensors.h"
#include "libcalib/artifacts/statistics_file.h"
#include "tests/apps/tools.h"

namespace oscar::test {
namespace {

class HfDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::copy(golden("families/llama3"), model_, fs::copy_options::recursive);
    std::mt19937 random(1);
    std::vector<int32_t> ids(24 * 256);
    for (auto& id : ids) id = static_cast<int32_t>(random() % 96);
    write_npy(folder_ / "ids.npy", make_tensor<int32_t>({24, 256}, ids));
  }
  Outcome dump(const Arguments& more = {}) const {
    return tool("oscar-dump", Arguments{"--model", model_.string(), "--text", (folder_ / "ids.npy").string(),
                                        "--probes", "4", "-o", (folder_ / "stats.h5").string()} +
                                  kSmall + more);
  }
  void refuse(int code, const std::string& part) const {
    const auto outcome = dump();
    EXPECT_EQ(outcome.code, code) << outcome;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << "expected '" << part << "'\n" << outcome;
    EXPECT_FALSE(fs::exists(folder_ / "stats.h5"));
  }
  SafeTensors weights() const { return read_safetensors(model_ / "model.safetensors"); }
  // A copy of `content` under another name first: it is mapped from the file that is replaced.
  void save(const SafeTensors& content) const { write_safetensors(model_ / "model.safetensors", content); }
  void configure(const std::string& from, const std::string& to) const {
    auto text = read(model_ / "config.json");
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    write(model_ / "config.json", text.replace(at, from.size(), to));
  }

  TempDir folder_;
  fs::path model_ = folder_ / "model";
};

TEST_F(HfDirectory, GoesThroughThePipeline) {
  const auto dumped = dump();
  ASSERT_EQ(dumped.code, 0) << dumped;
  const std::string stats = (folder_ / "stats.h5").string(), rotations = (folder_ / "rotations").string();
  const auto fitted = tool("oscar-fit", {stats, "-o", rotations, "-q"});
  ASSERT_EQ(fitted.code, 0) << fitted;
  const auto verified = tool("oscar-verify", {stats, "--rotations", rotations, "--end-to-end", "-q"});
  EXPECT_EQ(verified.code, 0) << verified;
}
TEST_F(HfDirectory, TextNeedsATokenizer) {
  write(folder_ / "a.txt", "text");
  const auto outcome = tool("oscar-dump", {"--model", model_.string(), "--text", (folder_ / "a.txt").string(),
                                           "-o", (folder_ / "s.h5").string()});
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_NE(outcome.err.find("has no tokenizer.json"), std::string::npos) << outcome;
}
TEST_F(HfDirectory, DamagedFiles) {
  const auto bytes = read(model_ / "model.safetensors");
  write(model_ / "model.safetensors", std::string_view(bytes).substr(0, bytes.size() - 100));
  refuse(3, "truncated");
  write(model_ / "model.safetensors", bytes);
  write(model_ / "model.safetensors.index.json",
        R"({"metadata":{},"weight_map":{"model.norm.weight":"model-2.safetensors"}})");
  refuse(3, "model-2.safetensors");
  fs::remove(model_ / "model.safetensors.index.json");
  fs::remove(model_ / "model.safetensors");
  refuse(2, "no .safetensors file");
  fs::remove(model_ / "config.json");
  refuse(2, "config.json");
}
TEST_F(HfDirectory, TensorsThatAreMissingLeftOverOrOfAnotherShape) {
  auto content = weights();
  const auto moved = content.tensors.extract("model.layers.1.mlp.up_proj.weight").mapped();
  save(content);
  refuse(3, "missing: model.layers.1.mlp.up_proj.weight");
  content.tensors["model.layers.1.mlp.up_proj.weight"] = moved;
  content.tensors["model.layers.9.mlp.up_proj.weight"] = moved;
  save(content);
  refuse(3, "left over: model.layers.9.mlp.up_proj.weight");
  content.tensors.erase("model.layers.9.mlp.up_proj.weight");
  content.tensors["model.norm.weight"] = make_tensor<float>({7}, std::vector<float>(7, 1));
  save(content);
  refuse(3, "model.norm.weight: expected shape [48], found [7]");
}
// A block that predicts the token after next looks like a layer and is none.
TEST_F(HfDirectory, LayersThatPredictFurtherTokensAreLeftOutAndSaidSo) {
  auto content = weights();
  for (const auto& [name, tensor] : weights().tensors) {
    constexpr std::string_view last = "model.layers.2.";
    if (name.starts_with(last)) content.tensors["model.layers.3." + name.substr(last.size())] = tensor;
  }
  save(content);
  refuse(3, "left over: model.layers.3.");
  configure(R"("model_type": "llama")", R"("model_type": "llama", "num_nextn_predict_layers": 1)");
  const auto outcome = dump();
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_NE(outcome.err.find("one layer after the decoder"), std::string::npos) << outcome;
}
// What a lie in config.json would become memory, an endless recursion or undefined.
TEST_F(HfDirectory, ConfigurationsThatCannotBe) {
  const auto good = read(model_ / "config.json");
  const auto with = [&](const std::string& field, const std::string& named) {
    write(model_ / "config.json", good.substr(0, good.rfind('}')) + ", " + field + "}");
    refuse(3, named);
  };
  with(R"("num_hidden_layers": 1000000000)", "'num_hidden_layers': expected 8192 at most, found 1000000000");
  with(R"("partial_rotary_factor": 1e300)", "'partial_rotary_factor': expected a number above 0, 1 at most");
  with(R"("rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 1e300})",
       "'original_max_position_embeddings': expected a number from 0 to 2^30");
  with(R"("other": )" + std::string(1000, '[') + std::string(1000, ']'), "JSON nested deeper than 100");
}
TEST_F(HfDirectory, NumbersThatCannotBe) {
  auto content = weights();
  std::vector<float> values(48, 1);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  content.tensors["model.layers.1.input_layernorm.weight"] = make_tensor<float>({48}, values);
  save(content);
  refuse(3, "model.layers.1.input_layernorm.weight: element 5 is nan");
}
// Activations overflow where no weight is infinite: the layer, sequence and token are named, and nothing is
// written.
TEST_F(HfDirectory, ActivationsThatOverflow) {
  auto content = weights();
  content.tensors["model.layers.1.input_layernorm.weight"] =
      make_tensor<float>({48}, std::vector<float>(48, 3e38f));
  save(content);
  const auto outcome = dump();
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_NE(outcome.err.find("layer 1, sequence "), std::string::npos) << outcome;
  EXPECT_NE(outcome.err.find(": the model overflows; run with --dtype float32 or check the checkpoint"),
            std::string::npos)
      << outcome;
  EXPECT_FALSE(fs::exists(folder_ / "stats.h5"));
}
// Beyond 65504 in float16 alone.
TEST_F(HfDirectory, ActivationsThatOverflowFloat16) {
  auto content = weights();
  const auto times = [&](const std::string& name, float factor) {
    const Tensor& tensor = content.tensors.at(name);
    auto values = tensor.floats();
    for (float& x : values) x *= factor;
    const Shape shape = tensor.shape;
    content.tensors[name] = make_tensor<float>(shape, values);
  };
  times("model.layers.1.input_layernorm.weight", 1e3f);
  times("model.layers.1.self_attn.v_proj.weight", 1e4f);
  save(content);
  const auto half = dump({"--dtype", "float16"});
  EXPECT_EQ(half.code, 3) << half;
  const std::regex said(
      "layer 1, sequence \\d+, token \\d+: v is -?inf: the model overflows; run with --dtype float32");
  EXPECT_TRUE(std::regex_search(half.err, said)) << half;
  EXPECT_FALSE(fs::exists(folder_ / "stats.h5"));
  for (const char* dtype : {"bfloat16", "float32"}) {
    const auto outcome = dump({"--dtype", dtype, "--restart"});
    EXPECT_EQ(outcome.code, 0) << outcome;
  }
}
// No layer's rows are behind the last MLP: only who asks for the perplexity meets its overflow.
TEST_F(HfDirectory, TheLastLayerOverflowsFloat16) {
  auto content = weights();
  const std::string name = "model.layers.2.post_attention_layernorm.weight";
  content.tensors[name] = make_tensor<float>({48}, std::vector<float>(48, 3e4f));
  save(content);
  const auto half = dump({"--dtype", "float16", "--perplexity"});
  EXPECT_EQ(half.code, 3) << half;
  const std::regex said(
      "after the last layer, sequence \\d+, token \\d+: the logits are not finite: the model overflows; run with "
      "--dtype float32");
  EXPECT_TRUE(std::regex_search(half.err, said)) << half;
  EXPECT_FALSE(fs::exists(folder_ / "stats.h5"));
  const auto outcome = dump({"--perplexity", "--restart"});
  EXPECT_EQ(outcome.code, 0) << outcome;
}
TEST_F(HfDirectory, VocabularyLargerThanTheEmbedding) {
  configure(R"("vocab_size": 96)", R"("vocab_size": 200)");
  refuse(3, "model.embed_tokens.weight: expected shape [200, 48], found [96, 48]");
}
TEST_F(HfDirectory, Fp8NeedsScalesOfAKnownKind) {
  auto content = weights();
  const std::string stem = "model.layers.0.self_attn.v_proj.";
  const Tensor& dense = content.tensors.at(stem + "weight");
  const auto dense_values = dense.floats();
  const Shape shape = dense.shape;
  std::vector<std::byte> codes(dense_values.size());
  std::vector<float> scaled = dense_values;
  for (float& x : scaled) x *= 400;
  from_float(DType::F8_E4M3, scaled.data(), scaled.size(), codes.data());
  content.tensors[stem + "weight"] = make_tensor(DType::F8_E4M3, shape, codes);
  save(content);
  refuse(3, "FP8 without");
  content.tensors[stem + "weight_scale"] = make_tensor<int32_t>({1}, {1});
  save(content);
  refuse(3, "its scale is I32");
  content.tensors[stem + "weight_scale"] = make_tensor<float>({3}, {1, 1, 1});
  save(content);
  refuse(3, "scales [3]");
  content.tensors[stem + "weight_scale"] = make_tensor<float>({1}, {1 / 400.0f});
  save(content);
  const auto outcome = dump();
  EXPECT_EQ(outcome.code, 0) << outcome;
}
TEST_F(HfDirectory, WhatIsNotSupportedIsNamed) {
  configure(R"("model_type": "llama")", R"("model_type": "gpt_neo")");
  refuse(2, "model_type 'gpt_neo' is not supported; known: llama, mistral");
  configure(R"("model_type": "gpt_neo")", R"("kv_lora_rank": 512, "model_type": "llama")");
  refuse(2, "multi-head latent attention");
  configure(R"("model_type": "llama")", R"("model_type": "deepseek_v3")");
  refuse(2, "caches one latent and one rotary key");
  configure(R"("model_type": "deepseek_v3")", R"("model_type": "llama")");
  configure(R"("kv_lora_rank": 512,)", R"("num_local_experts": 8,)");
  refuse(2, "mixture of experts");
  configure(R"("num_local_experts": 8,)", "");
  configure(R"("rope_type": "llama3")", R"("rope_type": "proportional")");
  refuse(2,
         "rope scaling 'proportional' is not supported; known: default, linear, dynamic, llama3, yarn, "
         "longrope");
  configure(R"("rope_type": "proportional")", R"("rope_type": "longrope")");
  refuse(3, "'short_factor': expected 8 positive numbers, found nothing");
}

TEST_F(HfDirectory, WhatAModelSeesWithIsLeftOutAndSaidSo) {
  configure(R"("model_type": "llama")", R"("model_type": "mllama", "vision_config": {})");
  refuse(2, "images or sound never");
  configure(R"("model_type": "mllama")", R"("model_type": "llama")");
  auto content = weights();
  const Tensor some = content.tensors.at("model.norm.weight");
  content.tensors["model.visual.blocks.0.norm.weight"] = content.tensors["vision_tower.patch.weight"] = some;
  content.tensors["mtp.norm.weight"] = some;
  save(content);
  const auto outcome = dump();
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_NE(outcome.err.find("2 tensors of a vision tower left out"), std::string::npos) << outcome;
  EXPECT_NE(outcome.err.find("1 tensors for predicting further tokens (mtp.*) left out"), std::string::npos)
      << outcome;
}

// Sink logits, a soft cap, and layers that have no cache.
class OtherAttention : public HfDirectory {
 protected:
  void take(const std::string& family) const {
    fs::remove_all(model_);
    fs::copy(golden("families/" + family), model_, fs::copy_options::recursive);
  }
  // Dumped, fitted, verified; the statistics.
  std::string through() const {
    const auto dumped = dump();
    EXPECT_EQ(dumped.code, 0) << dumped;
    const std::string stats = (folder_ / "stats.h5").string(), rotations = (folder_ / "rotations").string();
    fs::remove_all(rotations);
    const auto fitted = tool("oscar-fit", {stats, "-o", rotations, "-q"});
    EXPECT_EQ(fitted.code, 0) << fitted;
    const auto verified = tool("oscar-verify", {stats, "--rotations", rotations, "--end-to-end", "-q"});
    EXPECT_EQ(verified.code, 0) << verified;
    return stats;
  }
};
TEST_F(OtherAttention, SinkLogitsReachTheStatistics) {
  take("gpt_oss_mxfp4");
  const StatisticsReader statistics(through());
  ASSERT_EQ(statistics.header().layers.size(), 2u);
  for (const auto& shape : statistics.header().layers) {
    const auto stored =
        weights().tensors.at(fmt::format("model.layers.{}.self_attn.sinks", shape.layer)).floats();
    EXPECT_EQ(shape.sink_logits, stored);
    EXPECT_EQ(shape.sliding_window, shape.layer == 0 ? 40 : 0);
  }
}
TEST_F(OtherAttention, TheSoftCapReachesTheStatistics) {
  take("gemma2");
  const StatisticsReader statistics(through());
  for (const auto& shape : statistics.header().layers) EXPECT_EQ(shape.logit_cap, 4);
  configure(R"("attn_logit_softcapping": 4.0)", R"("attn_logit_softcapping": -4.0)");
  fs::remove(folder_ / "stats.h5");
  refuse(3, "'attn_logit_softcapping': expected a number above 0, or null, found -4");
}
TEST_F(OtherAttention, OnlyLayersWithACacheAreCalibrated) {
  take("qwen3_5");
  const std::string stats = through();
  const StatisticsReader statistics(stats);
  EXPECT_EQ(statistics.header().provenance.layers_total, 4);
  ASSERT_EQ(statistics.header().layers.size(), 2u);
  EXPECT_EQ(statistics.header().layers[0].layer, 1);
  EXPECT_EQ(statistics.header().layers[1].layer, 3);
  const auto generated = tool("oscar-verify", {stats, "--rotations", (folder_ / "rotations").string(),
                                               "--end-to-end", "--generate", "4", "--prompt", "100", "-q"});
  EXPECT_EQ(generated.code, 2) << generated;
  EXPECT_NE(generated.err.find("2 of its 4 layers keep a state"), std::string::npos) << generated;
}
TEST_F(OtherAttention, Mxfp4ThatIsNotWhole) {
  take("gpt_oss_mxfp4");
  auto content = weights();
  const std::string stem = "model.layers.1.mlp.experts.down_proj";
  const Tensor scales = content.tensors.extract(stem + "_scales").mapped();
  save(content);
  refuse(3, "MXFP4 is a tensor of blocks and one of scales, and no other; found _blocks");
  content.tensors[stem + "_scales"] = make_tensor(DType::U8, {1, 2}, std::vector<std::byte>(2));
  save(content);
  refuse(3, stem + "_scales: expected U8 [4, 64, 1], found U8 [1, 2]");
  std::vector<std::byte> spoilt(scales.bytes.begin(), scales.bytes.end());
  spoilt[0] = std::byte{255};
  content.tensors[stem + "_scales"] = make_tensor(DType::U8, scales.shape, spoilt);
  save(content);
  refuse(3, stem + ": element 0 is nan");
}

}  // namespace
}  // namespace oscar::test
