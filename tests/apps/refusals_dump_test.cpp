// One bad input a case: exit code, a message that names the culprit, nothing on stdout, nothing left on disk.
#include <gtest/gtest.h>

#include "tests/apps/refusals.h"

namespace oscar::test {
namespace {

class DumpOptionRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(DumpOptionRefusal, IsExplained) {
  const Bench bench;
  expect_refusal(bench, with(bench.dump_command(bench.stats()), GetParam().arguments), GetParam());
}
INSTANTIATE_TEST_SUITE_P(
    Options, DumpOptionRefusal,
    testing::Values(Refusal{"UnknownOption", {"--frobnicate"}, 2, "frobnicate"},
                    Refusal{"StrayArgument", {"stray"}, 2, "stray"},
                    Refusal{"SequenceOfOne", {"--seq-len", "1"}, 2, "--seq-len"},
                    Refusal{"SequenceNegative", {"--seq-len", "-5"}, 2, "--seq-len"},
                    Refusal{"SequenceNotANumber", {"--seq-len", "many"}, 2, "many"},
                    Refusal{"SequenceLongerThanText", {"--seq-len", "100000"}, 1, "tokens"},
                    Refusal{"TokensNegative", {"--tokens", "-1"}, 2, "--tokens"},
                    Refusal{"ProbesNegative", {"--probes", "-1"}, 2, "--probes"},
                    Refusal{"ProbesMoreThanText", {"--probes", "1000"}, 1, "1000"},
                    Refusal{"ProbesAndProbe", {"--probe", "-"}, 2, "--probe"},
                    Refusal{"Packing", {"--packing", "tight"}, 2, "packed"},
                    Refusal{"Bos", {"--bos", "perhaps"}, 2, "auto"},
                    Refusal{"ChatFormat", {"--chat-format", "vicuna"}, 2, "llama3"},
                    Refusal{"ChatFormatWithoutConversations", {"--chat-format", "chatml"}, 2, "no conversations"},
                    Refusal{"SinkNegative", {"--sink", "-1"}, 2, "--sink"},
                    Refusal{"RecentNegative", {"--recent", "-1"}, 2, "--recent"},
                    Refusal{"ShareZero", {"--score-queries", "0"}, 2, "--score-queries"},
                    Refusal{"ShareAboveOne", {"--score-queries", "3/2"}, 2, "3/2"},
                    Refusal{"ShareWithTail", {"--score-queries", "1/4x"}, 2, "1/4x"},
                    Refusal{"ShareOfNothing", {"--score-queries", "1/0"}, 2, "1/0"},
                    Refusal{"ShareNotANumber", {"--score-queries", "half"}, 2, "half"},
                    Refusal{"RowsNegative", {"--rows", "-1"}, 2, "--rows"},
                    Refusal{"SeedNegative", {"--seed", "-1"}, 2, "--seed"},
                    Refusal{"SeedNotANumber", {"--seed", "lucky"}, 2, "lucky"},
                    Refusal{"Dtype", {"--dtype", "int8"}, 2, "float32"},
                    Refusal{"MemoryNegative", {"--memory", "-1G"}, 2, "--memory: expected a whole number with or without K, M, G or T, found '-1G': say for example 8G, or 0 for no bound"},
                    Refusal{"MemoryNotASize", {"--memory", "plenty"}, 2, "found 'plenty'"},
                    Refusal{"MemoryOfUnknownUnit", {"--memory", "8Q"}, 2, "found '8Q'"},
                    Refusal{"MemoryOfAFraction", {"--memory", "1.5G"}, 2, "found '1.5G'"},
                    Refusal{"MemoryBeyondAnyMachine", {"--memory", "9999999999T"}, 2, "found '9999999999T'"},
                    Refusal{"ThreadsNegative", {"--threads", "-2"}, 2, "--threads"},
                    Refusal{"ResumeAndRestart", {"--resume", "--restart"}, 2, "--re"},
                    Refusal{"NoTextThere", {"--text", "/nowhere/text.txt"}, 2, "/nowhere/text.txt"},
                    Refusal{"NoProbeThere", {"--probes", "0", "--probe", "/nowhere/p.txt"}, 2, "/nowhere/p.txt"}),
    refusal_name);

TEST(DumpRefusals, WhatIsRequired) {
  const Bench bench;
  expect_refusal(bench, {binary("oscar-dump").string()}, {"", {}, 2, "--model"});
  expect_refusal(bench, {binary("oscar-dump").string(), "--model", bench.model(), "-o", bench.stats()}, {"", {}, 2, "--text"});
  expect_refusal(bench, {binary("oscar-dump").string(), "--model", bench.model(), "--text", bench.text()}, {"", {}, 2, "-o"});
}

// Refused before the plan of a run that will not be.
TEST(DumpRefusals, AShardBesideWhatNeedsAllSequences) {
  const Bench bench;
  for (const Arguments& option : {Arguments{"--perplexity"}, Arguments{"--save-qkv", (bench / "raw").string()}}) {
    const Arguments command = bench.dump_command(bench.stats()) + Arguments{"--shard", "0/2"} + option;
    expect_refusal(bench, command, {"", {}, 2, "--shard 0/2: " + option[0]});
    const auto outcome = run(command);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome;
  }
}

TEST(DumpRefusals, SequencesBeyondTheContextOfTheModel) {
  const Bench bench({}, 40000);
  expect_refusal(bench, with(bench.dump_command(bench.stats()), {"--seq-len", "5000", "--probes", "0"}), {"", {}, 2, "4096"});
}

TEST(DumpRefusals, OutputThatCannotBe) {
  const Bench bench;
  expect_refusal(bench, bench.dump_command("/nowhere/deep/stats.h5"), {"", {}, 2, "/nowhere"});
  EXPECT_FALSE(fs::exists("/nowhere"));
  expect_refusal(bench, bench.dump_command(bench.path().string()), {"", {}, 2, bench.path().filename().string()});
  EXPECT_FALSE(fs::exists(bench.path().string() + ".partial"));
  write(bench / "file", "x");
  expect_refusal(bench, bench.dump_command((bench / "file/stats.h5").string()), {"", {}, 2, "file"});
}

// Texts.

TEST(DumpRefusals, TextShorterThanASequence) {
  const Bench bench;
  write(bench / "short.txt", toy_text(60));
  expect_refusal(bench, {binary("oscar-dump").string(), "--model", bench.model(), "--text", (bench / "short.txt").string(), "--seq-len", "128", "-o", bench.stats()},
                 {"", {}, 1, "sequences of 128 tokens"});
}

// A damaged weight of a later layer stops the run there; what is finished is kept for --resume, the output is not there.
TEST(DumpRefusals, DamagedLaterLayer) {
  const Bench bench;
  auto draft = toy_model();
  draft.tensor("blk.2.ffn_down.weight").bytes.replace(400, 4, "\xff\xff\xff\x7f");
  write_gguf(bench.model(), draft);
  const auto outcome = run(bench.dump_command(bench.stats()));
  EXPECT_EQ(outcome.code, 3) << outcome;
  EXPECT_NE(outcome.err.find("blk.2.ffn_down.weight"), std::string::npos) << outcome;
  EXPECT_FALSE(fs::exists(bench.stats()));
}

struct BadText {
  const char* name;
  const char* file;
  std::string content;
  int code;
  const char* says;
};
class DumpTextRefusal : public testing::TestWithParam<BadText> {};

TEST_P(DumpTextRefusal, IsExplained) {
  const Bench bench;
  const auto& bad = GetParam();
  write(bench / bad.file, bad.content);
  auto command = bench.dump_command(bench.stats());
  *std::find(command.begin(), command.end(), bench.text()) = (bench / bad.file).string();
  expect_refusal(bench, command, {"", {}, bad.code, bad.says});
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00", 8) + std::string("\x76\x00", 2) + header + "\n" + data;
}
std::string int32s(std::vector<int32_t> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

INSTANTIATE_TEST_SUITE_P(
    Texts, DumpTextRefusal,
    testing::Values(BadText{"Empty", "empty.txt", "", 2, "empty.txt"},
                    BadText{"ShorterThanASequence", "short.txt", "Just a few words.", 1, "tokens"},
                    BadText{"NotUtf8", "latin.txt", "caf\xe9 " + toy_text(6000), 2, "3"},
                    BadText{"NotJson", "lines.jsonl", "{\"text\": \"fine\"}\n{\"text\": broken}\n", 2, "2"},
                    BadText{"NoKnownField", "lines.jsonl", "{\"title\": \"fine\"}\n", 2, "text"},
                    BadText{"NoChatTemplate", "lines.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", 2, "--chat-format"},
                    BadText{"NpyOfFloats", "ids.npy", npy("<f4", "(4,)", std::string(16, '\0')), 2, "ids.npy"},
                    BadText{"NpyTruncated", "ids.npy", npy("<i4", "(4000,)", std::string(16, '\0')), 3, "ids.npy"},
                    BadText{"NegativeId", "ids.npy", npy("<i4", "(4,)", int32s({1, 2, -3, 4})), 2, "-3"},
                    BadText{"IdBeyondVocabulary", "ids.npy", npy("<i4", "(4,)", int32s({1, 2, 70000, 4})), 2, "70000"}),
    [](const auto& info) { return info.param.name; });

// Models.

struct BadModel {
  const char* name;
  void (*spoil)(GgufDraft&);
  int code;
  const char* says;
};
class DumpModelRefusal : public testing::TestWithParam<BadModel> {};

TEST_P(DumpModelRefusal, IsExplained) {
  const Bench bench;
  auto draft = toy_model();
  GetParam().spoil(draft);
  write_gguf(bench.model(), draft);
  expect_refusal(bench, bench.dump_command(bench.stats()), {"", {}, GetParam().code, GetParam().says});
}
INSTANTIATE_TEST_SUITE_P(
    Models, DumpModelRefusal,
    testing::Values(
        BadModel{"UnknownArchitecture", [](GgufDraft& d) { d.set("general.architecture", std::string("mamba")); }, 2, "mamba"},
        BadModel{"NoArchitecture", [](GgufDraft& d) { d.erase("general.architecture"); }, 3, "general.architecture"},
        BadModel{"SentencePiece", [](GgufDraft& d) { d.set("tokenizer.ggml.model", std::string("llama")); }, 2, "llama"},
        BadModel{"UnknownPretokenizer", [](GgufDraft& d) { d.set("tokenizer.ggml.pre", std::string("klingon")); }, 2, "klingon"},
        BadModel{"RopeScaling", [](GgufDraft& d) { d.set("llama.rope.scaling.type", std::string("klingon")); }, 2, "klingon"},
        BadModel{"ExpertsWithoutTheirNumber", [](GgufDraft& d) { d.set("llama.expert_count", 8u); }, 3, "llama.expert_used_count"},
        BadModel{"MissingMetadata", [](GgufDraft& d) { d.erase("llama.attention.head_count"); }, 3, "llama.attention.head_count"},
        BadModel{"MetadataOfAnotherType", [](GgufDraft& d) { d.set("llama.block_count", std::string("three")); }, 3, "llama.block_count"},
        BadModel{"HeadsThatDoNotDivide", [](GgufDraft& d) { d.set("llama.attention.head_count_kv", 3u); }, 3, "3"},
        BadModel{"MissingTensor", [](GgufDraft& d) { std::erase_if(d.tensors, [](const auto& t) { return t.name == "blk.1.attn_v.weight"; }); }, 3, "blk.1.attn_v.weight"},
        BadModel{"TensorTooMany", [](GgufDraft& d) { d.tensor("blk.1.ffn_norm.weight").name = "blk.1.attn_q.bias"; }, 2, "blk.1.attn_q.bias"},
        BadModel{"TensorOfAnotherShape", [](GgufDraft& d) { d.tensor("blk.1.attn_v.weight").ne = {32, 128}; }, 3, "blk.1.attn_v.weight"},
        BadModel{"TensorOfUnknownType", [](GgufDraft& d) { d.tensor("blk.1.ffn_up.weight").type = 4242; }, 3, "blk.1.ffn_up.weight"},
        BadModel{"TensorBeyondTheFile", [](GgufDraft& d) { d.tensors.back().bytes.resize(8); }, 3, "output_norm.weight"},
        BadModel{"NotANumber",
                 [](GgufDraft& d) { d.tensor("blk.0.ffn_down.weight").bytes.replace(400, 4, "\xff\xff\xff\x7f"); }, 3, "blk.0.ffn_down.weight"}),
    [](const auto& info) { return info.param.name; });

// A type that GGUF knows and we do not decode: the model is not supported, the file is not broken.
TEST(DumpRefusals, QuantisationThatIsNotDecoded) {
  const Bench bench;
  auto draft = toy_model({.hidden = 256, .intermediate = 256});
  auto& tensor = draft.tensor("blk.0.ffn_up.weight");
  tensor.type = 16;  // IQ2_XXS: 66 bytes a block of 256
  tensor.bytes.assign(256 * 66, '\1');
  write_gguf(bench.model(), draft);
  expect_refusal(bench, bench.dump_command(bench.stats()), {"", {}, 2, "blk.0.ffn_up.weight"});
}

TEST(DumpRefusals, ModelThatIsNoModel) {
  const Bench bench;
  const auto with_model = [&](const std::string& path) {
    auto command = bench.dump_command(bench.stats());
    *std::find(command.begin(), command.end(), bench.model()) = path;
    return command;
  };
  expect_refusal(bench, with_model("/nowhere/model.gguf"), {"", {}, 2, "/nowhere/model.gguf"});
  expect_refusal(bench, with_model(bench.text()), {"", {}, 2, "text.txt"});
  expect_refusal(bench, with_model(bench.path().string()), {"", {}, 2, bench.path().filename().string()});
}

TEST(DumpRefusals, TruncatedGguf) {
  const Bench bench;
  const auto whole = read(bench.model());
  for (const size_t size : {size_t{3}, size_t{20}, size_t{300}, size_t{6000}, whole.size() / 2, whole.size() - 1000}) {
    write(bench.model(), whole.substr(0, size));
    expect_refusal(bench, bench.dump_command(bench.stats()), {"", {}, 3, "model.gguf"});
  }
}

}  // namespace
}  // namespace oscar::test
