// Whose dump is it, and what do its layer numbers mean? Every dialect, every doubt and every refusal, as
// folders.
#include "libcalib/artifacts/raw_dialects.h"

#include <fmt/ranges.h>

#include <functional>

#include "formats/pt.h"
#include "libcalib/artifacts/raw_dump.h"
#include "tests/calib/sample.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int>;
using Lengths = std::vector<std::vector<int64_t>>;

const LayerShape kShape = test::shape_of(0, 2, 1, 4, 4);

// Chunk c of every layer has 10 + c tokens.
void write_rows(const fs::path& dir, const Ids& layers, DType dtype, const Ids& chunks = {0, 1, 2}) {
  RawDumpWriter writer(dir, dtype);
  for (const int layer : layers) {
    for (const int chunk : chunks) {
      const auto r = test::rows_of(kShape, 10 + chunk, 1);
      writer.chunk(layer, chunk, kShape, r.q.data(), r.k.data(), r.v.data(), r.tokens);
    }
  }
}
// As an engine writes them: in the folder of each layer.
void write_lengths(const fs::path& dir, const Ids& layers, int chunk, std::vector<int32_t> lengths) {
  for (const int layer : layers)
    RawDumpWriter(dir / fmt::format("layer_{}", layer), DType::BF16).lengths(chunk, lengths);
}
void write_engine(const fs::path& dir, const Ids& layers, DType dtype = DType::BF16) {
  write_rows(dir, layers, dtype);
  write_lengths(dir, layers, 0, {10});
  write_lengths(dir, layers, 1, {4, 7});
  write_lengths(dir, layers, 2, {12});
}
void write_map(const fs::path& dir, const Ids& ids) {
  test::write(dir / "layer_map.json",
              fmt::format(R"({{"local_to_global": [{}], "model": "m"}})", fmt::join(ids, ", ")));
}
// A finished run of two prompts, of 11 and 12 tokens.
void write_meta(const fs::path& work, int prompts = 2, int tokens = 23, int resumed = 0) {
  test::write(work / "calibration_meta.json",
              fmt::format(R"({{"num_prompts_captured": {}, "dumped_tokens": {}, "resumed_prompts": {}}})",
                          prompts, tokens, resumed));
}
fs::path write_staged(const fs::path& work, const Ids& layers = {0, 5}) {
  const fs::path dir = work / "qkv_dumps" / "llamacpp";
  write_rows(dir, layers, DType::BF16, {1, 2});
  for (const int chunk : {1, 2}) write_lengths(dir, layers, chunk, {10 + chunk});
  test::write(dir / "prompts.jsonl", "{}\n");
  write_meta(work);
  fs::create_directories(work / "stage_manifests");
  test::write(work / "stage_manifests" / "dump.json", R"({"stage": "dump"})");
  return dir;
}

bool has_note(const RawDump& dump, std::string_view part) {
  return std::ranges::any_of(dump.notes,
                             [&](const auto& note) { return note.find(part) != std::string::npos; });
}
// The message of an exception of exactly this kind.
template <typename Kind>
std::string refusal(const fs::path& dir, std::optional<IdSpace> asked = {}) {
  try {
    open_raw_dump(dir, asked);
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << dir << " was opened";
  return "";
}
void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}
void expect_dump(const RawDump& dump, std::string_view dialect, IdSpace space, const Ids& layers,
                 const Lengths& lengths) {
  EXPECT_EQ(dump.dialect->name, dialect);
  EXPECT_EQ(dump.id_space, space);
  EXPECT_EQ(dump.layers, layers);
  EXPECT_EQ(dump.chunk_lengths, lengths);
  EXPECT_EQ(dump.chunks, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(has_note(dump, fmt::format("({})", dialect))) << fmt::format("{}", dump.notes);
}

TEST(RawDialects, Engine) {
  const test::TempDir dir;
  write_engine(dir.path(), {3, 10});
  const auto dump = open_raw_dump(dir.path());
  expect_dump(dump, "engine", IdSpace::Global, {3, 10}, {{4, 7}, {12}});
  EXPECT_TRUE(has_note(dump, "chunk 0, the warm-up"));
  EXPECT_FALSE(has_note(dump, "warning")) << fmt::format("{}", dump.notes);
  EXPECT_EQ(read_raw_layer(dump, 10).sums.tokens, 23);
}

TEST(RawDialects, NovaWithAMap) {
  const test::TempDir dir;
  write_rows(dir.path(), {0, 1, 2}, DType::F16);
  write_map(dir.path(), {3, 7, 11});
  const auto dump = open_raw_dump(dir.path());
  expect_dump(dump, "nova", IdSpace::Local, {3, 7, 11}, {{11}, {12}});
  EXPECT_EQ(dump.numbers, (Ids{0, 1, 2}));
  EXPECT_TRUE(has_note(dump, "chunk 0, the first tokens of chunk 1 again"));
  EXPECT_FALSE(has_note(dump, "warning")) << fmt::format("{}", dump.notes);
  EXPECT_EQ(read_raw_layer(dump, 7).sums.shape().layer, 7);
  EXPECT_THROW(read_raw_layer(dump, 1), std::invalid_argument);
  write_map(dir.path(), {3, 7, 11, 15});
  EXPECT_TRUE(has_note(open_raw_dump(dir.path()), "layer_map.json has 4 layers, the dump 3"));
}

TEST(RawDialects, WithoutMapAndLengthsTheNumbersAreIdsUnderAWarning) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const test::TempDir dir;
    write_rows(dir.path(), {0, 1}, dtype);
    const auto dump = open_raw_dump(dir.path());
    const bool f16 = dtype == DType::F16;
    expect_dump(dump, f16 ? "nova" : "engine", f16 ? IdSpace::Local : IdSpace::Global, {0, 1}, {{11}, {12}});
    EXPECT_TRUE(has_note(dump, "warning: the numbers 0 to 1 are taken as ids of the model"));
    EXPECT_EQ(has_note(dump, "mix requests"), !f16);
    EXPECT_FALSE(has_note(open_raw_dump(dir.path(), IdSpace::Global), "only if every layer"))
        << "it was said";
    EXPECT_TRUE(has_note(open_raw_dump(dir.path(), IdSpace::Local), "only if every layer"));
  }
  const test::TempDir dir;  // bfloat16 cannot be NOVA's, so gaps are those of a hybrid model
  write_rows(dir.path(), {3, 7}, DType::BF16);
  const auto dump = open_raw_dump(dir.path());
  expect_dump(dump, "engine", IdSpace::Global, {3, 7}, {{11}, {12}});
  EXPECT_TRUE(has_note(dump, "always F16"));
  EXPECT_TRUE(
      has_note(dump, "warning: no seq_lens and no layer_map.json: the numbers are taken as global ids"));
}

TEST(RawDialects, StagedByItsWorkDirectoryOrItsFolder) {
  const test::TempDir work;
  const fs::path dumps = write_staged(work.path());
  for (const fs::path& given : {work.path(), dumps, dumps / ""}) {
    const auto dump = open_raw_dump(given);
    expect_dump(dump, "staged", IdSpace::Global, {0, 5}, {{11}, {12}});
    EXPECT_TRUE(has_note(dump, "every chunk is used"));
    EXPECT_FALSE(has_note(dump, "warning")) << fmt::format("{}", dump.notes);
    EXPECT_EQ(read_raw_layer(dump, 5).sums.tokens, 23);
  }
  write_meta(work.path(), 2, 12, 1);  // resumed after the first prompt: dumped_tokens are those of the rest
  EXPECT_NO_THROW(open_raw_dump(work.path()));
}

TEST(RawDialects, UnfinishedStagesAreRefused) {
  const test::TempDir dir;
  const fs::path work = dir / "work", meta = work / "calibration_meta.json",
                 manifest = work / "stage_manifests" / "dump.json";
  const fs::path dumps = write_staged(work);
  const auto refused = [&](const std::vector<std::string>& parts) {
    for (const fs::path& given : {work, dumps}) expect_parts(refusal<std::runtime_error>(given), parts);
  };
  write_meta(work, 3);
  refused({"calibration_meta.json", "num_prompts_captured says 3 prompts, the dump has 2", "not finished"});
  write_meta(work, 1);
  refused({"num_prompts_captured says 1 prompts, the dump has 2"});
  write_meta(work, 2, 24);
  refused({"dumped_tokens says 24 tokens, the dump has 23", "not finished"});
  write_meta(work, 2, 23, 1);
  refused({"dumped_tokens says 23 tokens, the dump has 12"});
  test::write(meta, R"({"dumped_tokens": 23})");
  refused({"expected a whole number num_prompts_captured"});
  test::write(meta, "[");
  refused({"calibration_meta.json: expected a JSON object"});
  write_meta(work);
  test::write(manifest, R"({"stage": "rotation"})");
  refused({"dump.json: expected the manifest of the stage dump"});
  fs::remove(manifest);
  expect_parts(refusal<std::runtime_error>(work),
               {"not finished", "no stage_manifests/dump.json", "give " + dumps.string()});
  EXPECT_TRUE(has_note(open_raw_dump(dumps), "warning: there is no")) << "the folder by itself may be read";
  fs::remove(meta);
  expect_parts(refusal<std::runtime_error>(work), {"not finished", "no calibration_meta.json"});
  fs::remove_all(dumps);
  fs::create_directories(dumps);
  expect_parts(refusal<std::runtime_error>(work), {"not finished", "has no layer yet"});
}

TEST(RawDialects, StagedHasNoChunk0AndOnePromptAChunk) {
  const test::TempDir work;
  const fs::path dumps = write_staged(work.path(), {0});
  write_lengths(dumps, {0}, 2, {5, 7});
  expect_parts(refusal<std::runtime_error>(work.path()), {"chunk 2", "expected one sequence", "found 2"});
  write_lengths(dumps, {0}, 2, {12});
  write_rows(dumps, {0}, DType::BF16, {0});
  expect_parts(refusal<std::runtime_error>(work.path()), {"chunk 0", "numbers prompts from 1"});
}

TEST(RawDialects, DoubtsAskAndAnAnswerDecides) {
  struct Case {
    std::function<void(const fs::path&)> write;
    std::vector<std::string> says;  // why, and the two readings
    Ids global, local;              // the answers; no local ones: refused
    std::string_view as_global, as_local;
  };
  const std::vector<Case> cases{
      {[](const fs::path& dir) {
         write_engine(dir, {0, 1}), write_map(dir, {3, 7});
       },
       {"seq_lens are of dumps by global id", "layer_0 is layer 0", "it is layer 3"},
       {0, 1},
       {3, 7},
       "engine",
       "nova"},
      {[](const fs::path& dir) {
         write_rows(dir, {3, 7}, DType::F16), write_map(dir, {3, 7});
       },
       {"layer_map.json has 2 entries and there is layer_7", "layer_3 is layer 3", "none, as the map ends"},
       {3, 7},
       {},
       "nova",
       ""},
      {[](const fs::path& dir) {
         write_rows(dir, {0, 2}, DType::F16), write_map(dir, {0, 4});
       },
       {"layer_map.json has 2 entries and there is layer_2", "layer_2 is layer 2", "none, as the map ends"},
       {0, 2},
       {},
       "nova",
       ""},
      {[](const fs::path& dir) {
         write_rows(dir, {3, 7}, DType::F16);
       },
       {"no seq_lens, no layer_map.json", "not 0 to 1", "layer_3 is layer 3", "only a layer_map.json says"},
       {3, 7},
       {},
       "nova",
       ""},
      {[](const fs::path& dir) {
         write_rows(dir, {1, 2}, DType::F16);
       },
       {"not 0 to 1", "layer_1 is layer 1"},
       {1, 2},
       {},
       "nova",
       ""},
  };
  for (const auto& each : cases) {
    const test::TempDir dir;
    each.write(dir.path());
    const auto message = refusal<std::invalid_argument>(dir.path());
    expect_parts(message, each.says);
    expect_parts(message, {dir.path().string(), "cannot be told", "--id-space global|local"});
    const auto global = open_raw_dump(dir.path(), IdSpace::Global);
    expect_dump(global, each.as_global, IdSpace::Global, each.global, global.chunk_lengths);
    EXPECT_TRUE(has_note(global, "as --id-space global says"));
    EXPECT_EQ(has_note(global, "layer_map.json is not followed"), fs::exists(dir / "layer_map.json"));
    if (each.local.empty()) {
      expect_parts(refusal<std::invalid_argument>(dir.path(), IdSpace::Local),
                   {"layer_map.json", "--id-space global"});
      continue;
    }
    const auto local = open_raw_dump(dir.path(), IdSpace::Local);
    expect_dump(local, each.as_local, IdSpace::Local, each.local, {{4, 7}, {12}});
    EXPECT_EQ(local.numbers, (Ids{0, 1}));
    EXPECT_TRUE(has_note(local, "as --id-space local says"));
  }
  const test::TempDir work;
  const fs::path dumps = write_staged(work.path(), {0, 1});
  write_map(dumps, {2, 5});
  expect_parts(refusal<std::invalid_argument>(work.path()),
               {"writes no layer_map.json", "it is layer 2", "--id-space global|local"});
  EXPECT_EQ(open_raw_dump(work.path(), IdSpace::Local).layers, (Ids{2, 5}));
  EXPECT_EQ(open_raw_dump(work.path(), IdSpace::Global).layers, (Ids{0, 1}));
}

TEST(RawDialects, AnAnswerDecidesAgainstTheEvidenceToo) {
  const test::TempDir engine, nova;
  write_engine(engine.path(), {3, 7});
  expect_parts(refusal<std::invalid_argument>(engine.path(), IdSpace::Local),
               {"global ids are unknown", "not 0 to 1"});
  const test::TempDir dense;
  write_engine(dense.path(), {0, 1});
  const auto local = open_raw_dump(dense.path(), IdSpace::Local);
  expect_dump(local, "engine", IdSpace::Local, {0, 1}, {{4, 7}, {12}});
  EXPECT_TRUE(has_note(local, "only if every layer has full attention"));
  EXPECT_FALSE(has_note(open_raw_dump(dense.path()), "only if every layer"));
  write_rows(nova.path(), {0, 1}, DType::F16);
  write_map(nova.path(), {3, 7});
  expect_dump(open_raw_dump(nova.path(), IdSpace::Global), "nova", IdSpace::Global, {0, 1}, {{11}, {12}});
}

TEST(RawDialects, MapsThatAreNone) {
  const test::TempDir dir;
  write_rows(dir.path(), {0, 1}, DType::F16);
  for (const char* text : {"", "[]", "{}", R"({"local_to_global": []})", R"({"local_to_global": {"0": 3}})",
                           R"({"local_to_global": [3, "7"]})", R"({"local_to_global": [7, 3]})",
                           R"({"local_to_global": [3, 3]})", R"({"local_to_global": [-1, 3]})"}) {
    test::write(dir / "layer_map.json", text);
    expect_parts(refusal<std::runtime_error>(dir.path()), {"layer_map.json: expected"});
  }
}

TEST(RawDialects, WhatIsNotConvertedYetIsRefusedByName) {
  for (const std::string name :
       {"prompt_00001.oskv", "raw_llama_debug/prompt_00001.oskv",
        "raw_llama_debug/batch_0001/prompt_00001/Kcur-0.1.meta.txt", "Qcur-3.1.meta.txt"}) {
    const test::TempDir dir;
    fs::create_directories((dir / name).parent_path());
    test::write(dir / name, "x");
    const std::string what =
        name.ends_with(".oskv") ? "an .oskv stream" : "a raw tensor (.meta.txt and .bin)";
    for (const fs::path& given : {dir.path(), dir / name})
      expect_parts(refusal<std::invalid_argument>(given), {(dir / name).string(), what, "layer_<L>/{q,k,v}"});
  }
}

TEST(RawDialects, WhatIsNoDump) {
  const test::TempDir dir;
  expect_parts(refusal<std::invalid_argument>(dir.path()), {"found no layer"});
  expect_parts(refusal<std::invalid_argument>(dir / "nothing"), {"found nothing"});
  test::write(dir / "file", "x");
  expect_parts(refusal<std::invalid_argument>(dir / "file"), {"found a file"});
  write_engine(dir / "qkv_dumps" / "gpqa", {0});
  expect_parts(refusal<std::invalid_argument>(dir.path()), {"give " + (dir / "qkv_dumps" / "gpqa").string()});
  fs::create_directories(dir / "named" / "layer_one");
  expect_parts(refusal<std::invalid_argument>(dir / "named"), {"expected layer_<number>", "layer_one"});
}

TEST(RawDialects, IdSpacesByName) {
  for (const IdSpace space : {IdSpace::Global, IdSpace::Local})
    EXPECT_EQ(parse_id_space(id_space_name(space)), space);
  EXPECT_THROW(parse_id_space("Global"), std::invalid_argument);
}

}  // namespace
}  // namespace oscar
