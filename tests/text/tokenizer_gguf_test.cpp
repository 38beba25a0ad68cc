// From GGUF metadata to a tokenizer: what is read, and one lie per test.
#include <nlohmann/json.hpp>
#include <sstream>

#include "libdump/tokenizer/pretokenizer.h"
#include "libdump/tokenizer/tokenizer.h"
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

class TokenizerGguf : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open() {
    test::write_gguf(folder_ / "toy.gguf", draft_);
    return tokenizer_from_gguf(GgufFile::open(folder_ / "toy.gguf"));
  }
  template <typename Error>
  void refuses(const std::vector<std::string>& words) {
    try {
      open();
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      for (const auto& word : words)
        EXPECT_NE(std::string::npos, std::string(e.what()).find(word)) << e.what();
    }
  }
  void set(const std::string& key, test::GgufDraftValue value) {
    draft_.set("tokenizer.ggml." + key, std::move(value));
  }
  void erase(const std::string& key) { draft_.erase("tokenizer.ggml." + key); }

  test::GgufDraft draft_ = test::toy_model();
  test::TempDir folder_;
};

TEST_F(TokenizerGguf, ReadsText) {
  const auto tokenizer = open();
  const std::string text = test::toy_text(2000);
  const auto ids = tokenizer->encode(text);
  EXPECT_LT(ids.size(), text.size());
  EXPECT_EQ(text, tokenizer->decode(ids));
}
TEST_F(TokenizerGguf, WithoutAPreTokenizerTheDefaultIsTaken) {
  erase("pre");
  EXPECT_NO_THROW(open());
}
TEST_F(TokenizerGguf, BosIsTheFiles) {
  set("add_bos_token", true);
  set("bos_token_id", uint32_t{2});
  EXPECT_TRUE(open()->adds_bos());
  EXPECT_EQ(2, open()->bos());
}

TEST_F(TokenizerGguf, RefusesSentencePieceByName) {
  set("model", "llama");
  refuses<std::invalid_argument>({"toy.gguf", "'llama'", "gpt2"});
}
TEST_F(TokenizerGguf, RefusesBertByName) {
  set("model", "bert");
  refuses<std::invalid_argument>({"'bert'"});
}
TEST_F(TokenizerGguf, RefusesAFileWithoutTokenizer) {
  erase("model");
  refuses<std::invalid_argument>({"toy.gguf", "no tokenizer"});
}
TEST_F(TokenizerGguf, RefusesAnUnknownPreTokenizer) {
  set("pre", "klingon");
  refuses<std::invalid_argument>({"klingon", "smollm"});
}
TEST_F(TokenizerGguf, RefusesNoTokens) {
  erase("tokens");
  refuses<std::runtime_error>({"tokens is absent"});
}
TEST_F(TokenizerGguf, RefusesNoMerges) {
  erase("merges");
  refuses<std::runtime_error>({"merges is absent"});
}
TEST_F(TokenizerGguf, RefusesABosOutsideTheVocabulary) {
  set("bos_token_id", uint32_t{0xffffffff});
  refuses<std::runtime_error>({"bos_token_id", "4294967295"});
}
TEST_F(TokenizerGguf, RefusesTypesOfAnotherNumber) {
  set("token_type", std::vector<int32_t>{1, 1});
  refuses<std::runtime_error>({"2 token types"});
}

// tests/golden/make_pretokens.py
TEST(Pretokens, EveryLineAsHuggingFace) {
  std::istringstream file(test::read(test::golden("pretokens.jsonl")));
  size_t lines = 0;
  std::unique_ptr<Pretokenizer> cutter;
  for (std::string row; std::getline(file, row); ++lines) {
    const auto json = nlohmann::json::parse(row);
    if (!cutter || cutter->name() != json.at("name"))
      cutter = std::make_unique<Pretokenizer>(json.at("name").get<std::string>());
    const auto text = json.at("text").get<std::string>();
    std::vector<size_t> ends;
    cutter->split(
        text, [&](std::string_view word) { ends.push_back((ends.empty() ? 0 : ends.back()) + word.size()); });
    EXPECT_EQ(json.at("ends").get<std::vector<size_t>>(), ends) << row;
  }
  EXPECT_GT(lines, 900u);
}

}  // namespace
}  // namespace oscar
