// The ids of the `tokenizers` package, for six published files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "libdump/tokenizer/tokenizer.h"
#include "tests/support/support.h"
#include "tests/text/json_lines.h"

namespace oscar {
namespace {

using Json = nlohmann::json;

std::vector<Json> rows(const std::string& name) {
  std::vector<Json> all;
  std::istringstream file(test::read(test::golden(name)));
  for (std::string row; std::getline(file, row);) all.push_back(Json::parse(row));
  return all;
}

std::vector<std::string> sentences(const std::string& text) {
  std::vector<std::string> all;
  for (size_t at = 0, end = 0; end != text.npos; at = end + 2) {
    end = text.find(". ", at);
    if (end != at) all.push_back(text.substr(at, end == text.npos ? end : end - at));
  }
  return all;
}

struct Expected {
  const char* name;
  int32_t size, bos;
  bool adds_bos;
};
std::ostream& operator<<(std::ostream& out, const Expected& e) {
  return out << e.name;
}

class TokenizerJson : public testing::TestWithParam<Expected> {};
INSTANTIATE_TEST_SUITE_P(
    Published, TokenizerJson,
    testing::Values(Expected{"deepseek_v3", 128815, 0, true}, Expected{"gemma3", 262145, 2, true},
                    Expected{"gptoss", 200019, 199998, false}, Expected{"llama2", 32000, 1, true},
                    Expected{"llama3_1", 128256, 128000, true}, Expected{"qwen3", 151669, -1, false}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(TokenizerJson, EveryLineAsTheTokenizersPackage) {
  const auto& expected = GetParam();
  const std::string folder = std::string("tokenizers/") + expected.name;
  OSCAR_NEED_DATA(packed, folder + "/tokenizer.json.gz");
  OSCAR_NEED_DATA(config, folder + "/tokenizer_config.json");
  OSCAR_NEED_DATA(essays, "text/essays.txt");
  test::TempDir dir;
  const auto file = dir / "tokenizer.json";
  const auto unpacked =
      test::run({"/bin/sh", "-c", "gzip -dc \"$0\" > \"$1\"", packed.string(), file.string()});
  ASSERT_EQ(0, unpacked.code) << unpacked;
  test::fs::copy_file(config, dir / "tokenizer_config.json");

  const auto tokenizer = tokenizer_from_json(file);
  EXPECT_EQ(expected.size, tokenizer->size());
  EXPECT_EQ(expected.bos, tokenizer->bos());
  EXPECT_EQ(expected.adds_bos, tokenizer->adds_bos());
  EXPECT_EQ(64u, tokenizer->digest().size());

  std::vector<std::string> seeds, added;
  for (const auto& row : rows("smollm2_tokens.jsonl"))
    if (row.at("text") != "") seeds.push_back(row.at("text"));
  const auto json = Json::parse(test::read(file));
  for (const auto& token : json.at("added_tokens")) added.push_back(token.at("content"));
  size_t examples = 0, blocks = 0;
  for (const auto& row : rows("tokens_json.jsonl")) {
    if (row.at("name") != expected.name) continue;
    if (row.contains("text")) {
      EXPECT_EQ(row.at("ids"), Json(tokenizer->encode(row.at("text").get<std::string>()))) << row;
      ++examples;
      continue;
    }
    test::JsonLines lines(seeds, sentences(test::read(essays)), added);
    ASSERT_GE(row.at("lines"), 20000);
    size_t line = 0;
    for (const std::string hash : row.at("blocks")) {
      uint64_t h = 0xcbf29ce484222325u;
      const auto take = [&h](uint64_t n) { h = (h ^ n) * 0x100000001b3u; };
      for (const size_t end = line + 50; line < end; ++line) {
        const auto ids = tokenizer->encode(lines.line(line));
        take(ids.size());
        for (const int32_t id : ids) take(static_cast<uint64_t>(id));
      }
      ASSERT_EQ(hash, fmt::format("{:016x}", h)) << "lines " << line - 50 << " to " << line - 1;
      ++blocks;
    }
  }
  EXPECT_EQ(420u, blocks);
  EXPECT_EQ(60u, examples);
}

}  // namespace
}  // namespace oscar
