// Every family against `transformers`: checkpoints that it wrote, rows and logits that it computed
// (tests/golden/make_families.py).
#include <ATen/ATen.h>

#include <bit>
#include <cstdlib>
#include <regex>
#include <set>
#include <sstream>

#include "formats/error.h"
#include "formats/safetensors.h"
#include "libdump/decoder.h"
#include "libdump/models/host_rows.h"
#include "libdump/weights/mxfp4.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

std::vector<int32_t> prompt(int64_t length) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>((7 * i * i + 3 * i + length) % 96));
  return ids;
}
std::vector<int64_t> kept(int64_t length) {
  std::vector<int64_t> positions{0, length / 2, length - 1};
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

struct Errors {
  double rows = 0, logits = 0;
  std::string where;  // of the worst row
};
// Rows of the first `layers` layers.
Errors compare_files(const test::fs::path& rows, const test::fs::path& path, Precision precision, int64_t length,
               size_t layers = 100, at::Device device = at::kCPU) {
  const SafeTensors golden = read_safetensors(rows);
  const auto expected = [&](const std::string& part) {
    return golden.tensors.at(fmt::format("{}.{}", length, part)).floats();
  };
  auto model = open_model(path, precision, device);
  Decoder decoder(*model, {prompt(length)}, {1, true});
  Errors errors;
  const auto positions = kept(length);
  const auto picked = [&](const float* values, int64_t width) {
    std::vector<float> rows;
    for (const int64_t t : positions) rows.insert(rows.end(), values + t * width, values + (t + 1) * width);
    return rows;
  };
  size_t row = 0;  // of the layers that have a cache
  for (size_t layer = 0; !decoder.done(); ++layer) {
    decoder.run_layer([&](int64_t, const AttentionRows& of_model) {
      const HostRows rows(of_model);
      const LayerShape& s = *rows.shape;
      const auto check = [&](const char* part, const float* values, int64_t width) {
        const auto found = picked(values, width), all = expected(part);
        const double error =
            test::relative_error(found, std::span(all).subspan(row * found.size(), found.size()));
        if (error <= errors.rows) return;
        errors.rows = error;
        errors.where = fmt::format("layer {} {}", layer, part);
      };
      if (layer >= layers) return;
      check("q", rows.q, int64_t{s.q_heads} * s.dim_k);
      check("k", rows.k, int64_t{s.kv_heads} * s.dim_k);
      check("v", rows.v, int64_t{s.kv_heads} * s.dim_v);
      check("o", rows.o, int64_t{s.q_heads} * s.dim_v);
      EXPECT_EQ(s.layer, static_cast<int>(layer));
      ++row;
    });
  }
  const at::Tensor logits = to_cpu(model->logits(decoder.hidden()[0]));
  errors.logits =
      test::relative_error(picked(logits.const_data_ptr<float>(), logits.size(1)), expected("logits"));
  return errors;
}

Errors compare(const std::string& name, const test::fs::path& path, Precision precision, int64_t length,
               size_t layers = 100, at::Device device = at::kCPU) {
  return compare_files(test::golden("families/" + name + ".safetensors"), path, precision, length, layers,
                       device);
}

class Families : public ::testing::TestWithParam<const char*> {};
TEST_P(Families, RowsAndLogitsOfTransformers) {
  const auto path = test::golden(std::string("families/") + GetParam());
  for (const int64_t length : {1, 7, 130, 700}) {
    const Errors exact = compare(GetParam(), path, Precision::Float32, length);
    EXPECT_LE(exact.rows, 1e-4) << length << " tokens, " << exact.where;
    EXPECT_LE(exact.logits, 1e-4) << length << " tokens";
    // Which experts a token takes is no continuous function of anything: past the first layer a rounding may
    // choose others.
    const bool experts =
        test::read(test::golden(std::string("families/") + GetParam()) / "config.json").find("experts") !=
        std::string::npos;
    const Errors rounded = compare(GetParam(), path, Precision::BFloat16, length, experts ? 1 : 100);
    EXPECT_LE(rounded.rows, 2e-2) << length << " tokens, " << rounded.where;
    EXPECT_GE(rounded.rows, 1e-4) << "bfloat16 was asked for and float32 was run";
    const Errors half = compare(GetParam(), path, Precision::Float16, length, experts ? 1 : 100);
    EXPECT_LE(half.rows, 3e-3) << length << " tokens, " << half.where;
    EXPECT_GE(half.rows, 1e-5) << "float16 was asked for and float32 was run";
  }
}
INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::Values("llama", "llama3", "mistral", "qwen2", "qwen3", "smollm3",
                                           "gemma3", "phi3", "olmo2", "granite", "qwen3_moe", "mixtral",
                                           "glm4", "glm4_moe", "minimax_m2", "gpt_oss", "gpt_oss_mxfp4",
                                           "gemma2", "gemma2_scale", "yarn", "longrope", "dynamic", "qwen3_5",
                                           "qwen3_5_moe", "qwen3_next"),
                         [](const auto& info) { return std::string(info.param); });

// The same on a GPU; its sums in the order it likes.
TEST_P(Families, OnAGpu) {
  at::Device device = at::kCPU;
  try {
    device = torch_device("cuda");
  } catch (const std::runtime_error& error) {
    GTEST_SKIP() << error.what();
  }
  const auto path = test::golden(std::string("families/") + GetParam());
  const bool experts = test::read(path / "config.json").find("experts") != std::string::npos;
  for (const int64_t length : {1, 7, 130, 700}) {
    const Errors exact = compare(GetParam(), path, Precision::Float32, length, 100, device);
    EXPECT_LE(exact.rows, 1e-4) << length << " tokens, " << exact.where;
    EXPECT_LE(exact.logits, 1e-4) << length << " tokens";
    const Errors rounded = compare(GetParam(), path, Precision::BFloat16, length, experts ? 1 : 100, device);
    // What products give is rounded as well there, as the CPUs that multiply bfloat16 do it.
    EXPECT_LE(rounded.rows, 3e-2) << length << " tokens, " << rounded.where;
    EXPECT_GE(rounded.rows, 1e-4) << "bfloat16 was asked for and float32 was run";
  }
}

// Every four bits under every scale, as transformers reads them: denormal, infinite and all.
TEST(FamiliesMxfp4, EveryCodeUnderEveryScaleToTheBit) {
  const SafeTensors golden = read_safetensors(test::golden("mxfp4.safetensors"));
  const Tensor &blocks = golden.tensors.at("blocks"), &scales = golden.tensors.at("scales");
  const auto expected = golden.tensors.at("values").floats();
  std::vector<float> got(expected.size());
  mxfp4::decode(blocks.bytes.data(), scales.bytes.data(), scales.count(), got.data());
  ASSERT_EQ(scales.count(), 512);
  std::set<std::pair<int, int>> seen;
  for (size_t i = 0; i < got.size(); ++i) {
    const int scale = std::to_integer<int>(scales.bytes[i / 32]),
              byte = std::to_integer<int>(blocks.bytes[i / 2]);
    seen.insert({scale, i % 2 ? byte >> 4 : byte & 15});
    if (scale == 255)  // the format calls these NaN; transformers has infinities among them
      EXPECT_TRUE(std::isnan(got[i]));
    else
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
          << scale << " " << byte;
  }
  EXPECT_EQ(seen.size(), 4096);
}

// The same checkpoints as GGUF files, with the names and changes of the `gguf` package. Windows that a GGUF
// file does not hold are longer than the prompts.
TEST(FamiliesGguf, RowsAndLogitsOfTransformers) {
  const char* python = std::getenv("OSCAR_TEST_PYTHON");
  if (!python || !*python)
    GTEST_SKIP() << "needs OSCAR_TEST_PYTHON, a Python with torch, safetensors, gguf and transformers";
  const test::TempDir folder;
  const auto script = test::fs::path(OSCAR_SOURCE_DIR) / "tests/dump/make_gguf.py";
  const auto outcome =
      test::run({python, script.string(), test::golden("families").string(), folder.path().string()});
  ASSERT_EQ(outcome.code, 0) << outcome;
  for (const std::string file :
       {"llama",    "llama3",      "mistral",          "qwen2",      "qwen3",
        "smollm3",  "gemma2",      "gemma3",           "phi3",       "olmo2",
        "granite",  "longrope",    "qwen3_moe",        "mixtral",    "glm4",
        "glm4_moe", "minimax_m2",  "gpt_oss",          "qwen3_next", "qwen3_next_early",
        "qwen3_5",  "qwen3_5_moe", "qwen3_5_moe_fused"}) {
    const std::string name = std::regex_replace(file, std::regex("_early|_fused"), "");
    const bool windowed = name == "mistral" || name == "qwen2";
    for (const int64_t length :
         windowed ? std::vector<int64_t>{1, 7} : std::vector<int64_t>{1, 7, 130, 700}) {
      const Errors errors = compare(name, folder / (file + ".gguf"), Precision::Float32, length);
      EXPECT_LE(errors.rows, 1e-4) << file << ", " << length << " tokens, " << errors.where;
      EXPECT_LE(errors.logits, 1e-4) << file << ", " << length << " tokens";
    }
  }
  const auto notes = open_model(folder / "glm4_moe.gguf", Precision::Float32)->config().notes;
  ASSERT_EQ(notes.size(), 1);
  EXPECT_NE(notes[0].find("one layer after the decoder"), std::string::npos) << notes[0];
}

// Configurations that nobody chose: a few, or those of OSCAR_TEST_FAMILIES, a folder that
// tests/golden/random_families.py wrote.
TEST(FamiliesRandom, AgreeWithTransformersOrAreRefused) {
  const char* python = std::getenv("OSCAR_TEST_PYTHON");
  const char* given = std::getenv("OSCAR_TEST_FAMILIES");
  const test::TempDir own;
  const test::fs::path folder = given && *given ? test::fs::path(given) : own.path();
  if (folder == own.path()) {
    if (!python || !*python)
      GTEST_SKIP() << "needs OSCAR_TEST_PYTHON, a Python with torch, safetensors and transformers";
    const auto script = test::fs::path(OSCAR_SOURCE_DIR) / "tests/golden/random_families.py";
    const auto outcome = test::run({python, script.string(), folder.string(), "--cases", "19"});
    ASSERT_EQ(outcome.code, 0) << outcome;
  }
  std::istringstream cases(test::read(folder / "cases.tsv"));
  size_t agreed = 0, refused = 0;
  for (std::string line; std::getline(cases, line);) {
    const auto tab = line.find('\t'), last = line.find('\t', tab + 1);
    const std::string name = line.substr(0, tab), expected = line.substr(tab + 1, last - tab - 1),
                      where = name + ": " + line.substr(last + 1);
    const bool rows = expected != "refused";
    const SafeTensors golden =
        rows ? read_safetensors(folder / (name + ".safetensors")) : SafeTensors{};
    try {
      if (!rows) {
        open_model(folder / name, Precision::Float32);
        ADD_FAILURE() << where << ": was not refused";
        continue;
      }
      for (const int64_t length : {1, 7, 130, 700}) {
        if (!golden.tensors.contains(fmt::format("{}.logits", length))) continue;
        const Errors errors =
            compare_files(folder / (name + ".safetensors"), folder / name, Precision::Float32, length);
        EXPECT_LE(errors.rows, 1e-4) << where << ": " << length << " tokens, " << errors.where;
        EXPECT_LE(errors.logits, 1e-4) << where << ": " << length << " tokens";
      }
      ++agreed;
    } catch (const std::exception& error) {
      EXPECT_NE(expected, "same") << where << ": " << error.what();
      if (given) std::printf("%s: refused: %s\n", where.c_str(), error.what());
      ++refused;
    }
  }
  EXPECT_GE(agreed, refused);
  EXPECT_GE(agreed, given ? 1 : 10);
}

}  // namespace
}  // namespace oscar
