// The ids of other implementations, on the SmolLM2 vocabulary.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "formats/npy.h"
#include "libdump/tokenizer/tokenizer.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

struct Line {
  std::string text;
  std::vector<int32_t> ids;
};

std::vector<Line> golden_lines() {
  std::vector<Line> lines;
  std::istringstream file(test::read(test::golden("smollm2_tokens.jsonl")));
  for (std::string row; std::getline(file, row);) {
    const auto json = nlohmann::json::parse(row);
    lines.push_back({json.at("text"), json.at("ids")});
  }
  return lines;
}

TEST(TokenizerParity, EveryLineAsLlamaCpp) {
  OSCAR_NEED_MODEL(model);
  const auto tokenizer = tokenizer_from_gguf(GgufFile::open(model));
  const auto lines = golden_lines();
  EXPECT_GE(lines.size(), 2000u);
  size_t wrong = 0;
  for (const Line& line : lines) {
    const auto ids = tokenizer->encode(line.text);
    if (ids != line.ids && ++wrong < 10)
      ADD_FAILURE() << nlohmann::json(line.text).dump() << "\nexpected " << nlohmann::json(line.ids).dump()
                    << "\nfound    " << nlohmann::json(ids).dump();
  }
  EXPECT_EQ(0u, wrong) << "of " << lines.size();
}

// The vocabulary lacks the tokens of six control bytes and of two that begin unassigned characters.
TEST(TokenizerParity, DecodingGivesTheTextBack) {
  OSCAR_NEED_MODEL(model);
  const auto tokenizer = tokenizer_from_gguf(GgufFile::open(model));
  const std::string lost("\x04\x06\x13\x14\x16\x1d\xf1\xf2", 8);
  for (const Line& line : golden_lines()) {
    if (line.text.find_first_of(lost) != std::string::npos) continue;
    EXPECT_EQ(line.text, tokenizer->decode(line.ids));
  }
}

TEST(TokenizerParity, ManyThreadsOneTokenizer) {
  OSCAR_NEED_MODEL(model);
  const auto tokenizer = tokenizer_from_gguf(GgufFile::open(model));
  const auto lines = golden_lines();
  std::vector<size_t> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < lines.size(); i += 2)
        wrong[t] += tokenizer->encode(lines[i].text) != lines[i].ids;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::vector<size_t>(4), wrong);
}

TEST(TokenizerParity, WhatTheFileSaysOfIt) {
  OSCAR_NEED_MODEL(model);
  const auto tokenizer = tokenizer_from_gguf(GgufFile::open(model));
  EXPECT_EQ(49152, tokenizer->size());
  EXPECT_EQ(1, tokenizer->bos());
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(64u, tokenizer->digest().size());
}

std::vector<int32_t> stored_ids(const test::fs::path& path) {
  const auto ids = read_npy(path).integers();
  return {ids.begin(), ids.end()};
}

// How the ids were made: the text encoded whole, without BOS, its first 16 × 4096 tokens.
TEST(TokenizerParity, StoredCalibrationIds) {
  OSCAR_NEED_MODEL(model);
  OSCAR_NEED_DATA(text, "text/essays.txt");
  OSCAR_NEED_DATA(stored, "smollm2/calib_ids.npy");
  const auto expected = stored_ids(stored);
  auto ids = tokenizer_from_gguf(GgufFile::open(model))->encode(test::read(text));
  ASSERT_GE(ids.size(), expected.size());
  ids.resize(expected.size());
  EXPECT_EQ(expected, ids);
}

// The last 350,000 characters encoded, the first 6 × 4096 tokens of that.
TEST(TokenizerParity, StoredProbeIds) {
  OSCAR_NEED_MODEL(model);
  OSCAR_NEED_DATA(text, "text/essays.txt");
  OSCAR_NEED_DATA(stored, "smollm2/probe_ids.npy");
  const auto expected = stored_ids(stored);
  const std::string all = test::read(text);
  size_t begin = all.size();
  for (size_t characters = 0; characters < 350000 && begin > 0;) characters += (all[--begin] & 0xc0) != 0x80;
  auto ids = tokenizer_from_gguf(GgufFile::open(model))->encode(std::string_view(all).substr(begin));
  ASSERT_GE(ids.size(), expected.size());
  ids.resize(expected.size());
  EXPECT_EQ(expected, ids);
}

}  // namespace
}  // namespace oscar
