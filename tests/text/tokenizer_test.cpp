// The parts of the tokenizer, on vocabularies small enough to check by hand.
#include "libdump/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "libdump/tokenizer/bpe.h"
#include "libdump/tokenizer/pretokenizer.h"
#include "libdump/tokenizer/special_tokens.h"
#include "libdump/tokenizer/utf8.h"

namespace oscar {
namespace {

using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

Words split(const std::string& name, std::string_view text) {
  Words words;
  Pretokenizer(name).split(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(Pretokenizer, EveryNameOfTheTableCutsTextWithoutLoss) {
  const std::string text = "Hello  world's 12345 +x\u00e9 \t\r\n\n漢字!? I'LL ٣٤ 😀\n end ";
  EXPECT_GE(pretokenizer_names().size(), 11u);
  for (const auto& name : pretokenizer_names()) {
    std::string joined;
    for (const auto& word : split(name, text)) {
      EXPECT_FALSE(word.empty()) << name;
      joined += word;
    }
    EXPECT_EQ(text, joined) << name;
  }
}

TEST(Pretokenizer, Gpt2) {
  EXPECT_EQ((Words{"I", "'m", " here", " 2024", "!!", "\n", "\n", "ok", " ", " a", "  "}),
            split("gpt-2", "I'm here 2024!!\n\nok  a  "));
}
TEST(Pretokenizer, SmollmCutsDigitsFirst) {
  EXPECT_EQ((Words{"a", " ", "2", "0", " b", "²"}), split("smollm", "a 20 b²"));
  EXPECT_EQ((Words{"a", "  ", "1"}), split("smollm", "a  1"))
      << "a piece before a digit ends the text, for the next pattern";
}
TEST(Pretokenizer, LlamaTakesThreeDigits) {
  EXPECT_EQ((Words{"x", "123", "45", "'Re", " y"}), split("llama3", "x12345'Re y"));
}
TEST(Pretokenizer, QwenTakesOneDigitAndNewlinesTogether) {
  EXPECT_EQ((Words{"1", "2", " \n\n", "  ", " a"}), split("qwen2", "12 \n\n   a"));
}
TEST(Pretokenizer, Gpt4oCutsAtCapitals) {
  EXPECT_EQ((Words{"foo", "Bar", "BAZ's", " HTMLElement"}), split("gpt-4o", "fooBarBAZ's HTMLElement"));
}
TEST(Pretokenizer, MongolianVowelSeparatorIsNoSpace) {
  EXPECT_EQ((Words{"a", "\u180e", "b"}), split("gpt-2",
                                               "a\u180e"
                                               "b"));
}

TEST(Pretokenizer, LongRunsAreLinear) {
  for (const auto& name : pretokenizer_names())
    for (const char* unit : {" ", "a", "\n", "1", "=", "'", "A", "漢"}) {
      std::string text;
      for (int i = 0; i < 100000; ++i) text += unit;
      size_t bytes = 0;
      Pretokenizer(name).split(text, [&](std::string_view word) { bytes += word.size(); });
      EXPECT_EQ(text.size(), bytes) << name;
    }
}

TEST(Pretokenizer, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    Pretokenizer("klingon");
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string::npos, std::string(e.what()).find("klingon")) << e.what();
    EXPECT_NE(std::string::npos, std::string(e.what()).find("smollm, ")) << e.what();
  }
}

TEST(SpecialTokens, TheLongestTakesTheText) {
  SpecialTokens special;
  special.add("<a>", 1);
  special.add("<a><b>", 2);
  special.add("<b><", 3);
  special.add("", 4);
  std::vector<std::pair<std::string, int32_t>> pieces;
  special.split("x<a><b><<a>y<b",
                [&](std::string_view piece, int32_t id) { pieces.emplace_back(piece, id); });
  EXPECT_EQ((std::vector<std::pair<std::string, int32_t>>{
                {"x", -1}, {"<a><b>", 2}, {"<", -1}, {"<a>", 1}, {"y<b", -1}}),
            pieces);
}

TEST(ByteAlphabet, IsItsOwnInverse) {
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  EXPECT_EQ(all, bytes_of_token(token_of_bytes(all)));
  EXPECT_EQ("Ġa", token_of_bytes(" a"));
  EXPECT_EQ(std::nullopt, bytes_of_token("a b")) << "a plain space stands for no byte";
}

// All bytes, then the merges' results.
BpeVocabulary toy(const std::vector<std::string>& merges) {
  BpeVocabulary v;
  for (int b = 0; b < 256; ++b) v.tokens.push_back(token_of_bytes(std::string(1, static_cast<char>(b))));
  for (const auto& merge : merges) {
    std::string whole = merge;
    whole.erase(whole.find(' ', 1), 1);
    if (std::find(v.tokens.begin(), v.tokens.end(), whole) == v.tokens.end()) v.tokens.push_back(whole);
  }
  v.merges = merges;
  v.pretokenizer = "gpt-2";
  return v;
}
Words pieces(const BpeVocabulary& v, const std::string& text) {
  Words words;
  for (const int32_t id : make_bpe_tokenizer(v, "toy")->encode(text))
    words.push_back(v.tokens[static_cast<size_t>(id)]);
  return words;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  EXPECT_EQ((Words{"a", "bc", "d"}), pieces(toy({"b c", "a b", "c d"}), "abcd"));
  EXPECT_EQ((Words{"aa", "aa", "a"}), pieces(toy({"a a"}), "aaaaa"));
  EXPECT_EQ((Words{"aaaa", "a"}), pieces(toy({"a a", "aa aa"}), "aaaaa"));
  EXPECT_EQ((Words{"ab", "abc"}), pieces(toy({"a b", "ab c", "c a"}), "ababc"));
}

// The definition, word by word: scan for the best pair, merge it, begin again.
Ids slowly(const BpeVocabulary& v, const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.push_back(token_of_bytes(std::string(1, c)));
  for (;;) {
    size_t best = v.merges.size(), where = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = static_cast<size_t>(
          std::find(v.merges.begin(), v.merges.end(), parts[i] + " " + parts[i + 1]) - v.merges.begin());
      if (rank < best) best = rank, where = i;
    }
    if (best == v.merges.size()) break;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
  Ids ids;
  for (const auto& part : parts)
    ids.push_back(static_cast<int32_t>(std::find(v.tokens.begin(), v.tokens.end(), part) - v.tokens.begin()));
  return ids;
}

TEST(Bpe, EqualsTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<std::string> known{"a", "b", "c", "d"}, merges;
    for (int i = 0; i < 40; ++i) {
      const auto left = known[random() % known.size()], right = known[random() % known.size()];
      if (left.size() + right.size() > 9 ||
          std::find(merges.begin(), merges.end(), left + " " + right) != merges.end())
        continue;
      merges.push_back(left + " " + right);
      known.push_back(left + right);
    }
    const auto vocabulary = toy(merges);
    const auto tokenizer = make_bpe_tokenizer(vocabulary, "toy");
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (size_t n = 1 + random() % 30; n--;) word += static_cast<char>('a' + random() % 4);
      EXPECT_EQ(slowly(vocabulary, word), tokenizer->encode(word)) << word;
    }
  }
}

TEST(Bpe, AMillionEqualLettersAreNotQuadratic) {
  const auto tokenizer = make_bpe_tokenizer(toy({"a a", "aa aa", "aaaa aaaa"}), "toy");
  EXPECT_EQ(125000u, tokenizer->encode(std::string(1000000, 'a')).size());
}

TEST(Tokenizer, SpecialTokensInText) {
  auto v = toy({});
  v.tokens.insert(v.tokens.end(), {"<|end|>", "<tool>"});
  v.types.assign(256, BpeVocabulary::Normal);
  v.types.insert(v.types.end(), {BpeVocabulary::Control, BpeVocabulary::UserDefined});
  const auto tokenizer = make_bpe_tokenizer(v, "toy");
  EXPECT_EQ((Ids{'a', 256, 257}), tokenizer->encode("a<|end|><tool>"));
  const auto plain = tokenizer->encode("<|end|><tool>", false);
  EXPECT_EQ(8u, plain.size()) << "what a user defined is always a token";
  EXPECT_EQ(257, plain.back());
  EXPECT_EQ("<|end|><tool>", tokenizer->decode(plain));
  EXPECT_EQ("a<|end|>", tokenizer->decode({'a', 256}));
}

TEST(Tokenizer, WholeWordsSkipTheMerges) {
  auto v = toy({"a b"});
  v.tokens.push_back("xyz");
  EXPECT_EQ((Words{"x", "y", "z"}), pieces(v, "xyz"));
  v.pretokenizer = "llama-bpe";
  EXPECT_EQ((Words{"xyz"}), pieces(v, "xyz"));
}

TEST(Tokenizer, AByteWithoutATokenIsLeftOut) {
  auto v = toy({});
  v.tokens[7] = "<unused>";
  const auto tokenizer = make_bpe_tokenizer(v, "toy");
  EXPECT_EQ("ab", tokenizer->decode(tokenizer->encode("a\ab")));
}

TEST(Tokenizer, BosIsAskedForByFileOrTable) {
  auto v = toy({});
  EXPECT_FALSE(make_bpe_tokenizer(v, "toy")->adds_bos());
  EXPECT_EQ(-1, make_bpe_tokenizer(v, "toy")->bos());
  v.bos = 3;
  v.pretokenizer = "llama-bpe";
  EXPECT_TRUE(make_bpe_tokenizer(v, "toy")->adds_bos());
  v.adds_bos = false;
  EXPECT_FALSE(make_bpe_tokenizer(v, "toy")->adds_bos());
}

TEST(Tokenizer, TheDigestSeesEveryPart) {
  const auto base = toy({"a b", "c d"});
  std::vector<std::string> digests{make_bpe_tokenizer(base, "toy")->digest()};
  EXPECT_EQ(digests[0], make_bpe_tokenizer(base, "elsewhere")->digest());
  const auto differs = [&](auto change) {
    auto v = base;
    change(v);
    const auto digest = make_bpe_tokenizer(v, "toy")->digest();
    EXPECT_EQ(digests.end(), std::find(digests.begin(), digests.end(), digest));
    digests.push_back(digest);
  };
  differs([](auto& v) { v.tokens.push_back("new"); });
  differs([](auto& v) { std::swap(v.merges[0], v.merges[1]); });
  differs([](auto& v) { v.types.assign(v.tokens.size(), 1), v.types[5] = 3; });
  differs([](auto& v) { v.pretokenizer = "qwen2"; });
  differs([](auto& v) { v.bos = 5; });
}

TEST(TokenizerRefuses, TextThatIsNotUtf8) {
  const auto tokenizer = make_bpe_tokenizer(toy({}), "toy");
  EXPECT_THROW(tokenizer->encode("abc\xff"), std::invalid_argument);
}
TEST(TokenizerRefuses, AnIdOutsideTheVocabulary) {
  const auto tokenizer = make_bpe_tokenizer(toy({}), "toy");
  EXPECT_THROW(tokenizer->decode({256}), std::invalid_argument);
  EXPECT_THROW(tokenizer->decode({-1}), std::invalid_argument);
}
TEST(TokenizerRefuses, AMergeOfUnknownTokens) {
  auto v = toy({"a b"});
  v.merges.push_back(
      "ab q"
      "q");
  EXPECT_THROW(make_bpe_tokenizer(v, "toy"), std::runtime_error);
}
TEST(TokenizerRefuses, AMergeWithoutASpace) {
  auto v = toy({});
  v.merges.push_back("ab");
  EXPECT_THROW(make_bpe_tokenizer(v, "toy"), std::runtime_error);
}
TEST(TokenizerRefuses, TypesThatAreNotOneAToken) {
  auto v = toy({});
  v.types = {1, 1};
  EXPECT_THROW(make_bpe_tokenizer(v, "toy"), std::runtime_error);
}
TEST(TokenizerRefuses, ABosOutsideTheVocabulary) {
  auto v = toy({});
  v.bos = 256;
  EXPECT_THROW(make_bpe_tokenizer(v, "toy"), std::runtime_error);
}
TEST(TokenizerRefuses, ToAddABosThatIsNotNamed) {
  auto v = toy({});
  v.adds_bos = true;
  EXPECT_THROW(make_bpe_tokenizer(v, "toy"), std::runtime_error);
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(std::string::npos, invalid_utf8("aé漢😀"));
  EXPECT_EQ(9u, invalid_utf8("12345678\x41\x80"));
  EXPECT_EQ(0u, invalid_utf8("\xf4\x90\x80\x80")) << "above U+10FFFF";
  EXPECT_EQ(std::string::npos, invalid_utf8(std::string("a\0b", 3)));
}

}  // namespace
}  // namespace oscar
