// tokenizer.json part by part, on vocabularies small enough to check by hand.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "libdump/tokenizer/added_tokens.h"
#include "libdump/tokenizer/bpe.h"
#include "libdump/tokenizer/cutters.h"
#include "libdump/tokenizer/decoders.h"
#include "libdump/tokenizer/normalizers.h"
#include "libdump/tokenizer/oniguruma.h"
#include "libdump/tokenizer/regex.h"
#include "libdump/tokenizer/tokenizer.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;
using Ids = std::vector<int32_t>;

template <typename Exception, typename Does>
void refuses(const std::string& named, const Does& does) {
  try {
    does();
    ADD_FAILURE() << "not refused: " << named;
  } catch (const Exception& e) {
    EXPECT_NE(std::string::npos, std::string(e.what()).find(named)) << e.what();
  }
}

std::string normalized(const char* json, std::string text) {
  read_normalizer(Json::parse(json))->apply(text);
  return text;
}
TEST(Normalizers, EachKind) {
  EXPECT_EQ("\u00e9 \u00c5", normalized(R"({"type":"NFC"})", "e\u0301 \u212b"));
  EXPECT_EQ("e\u0301", normalized(R"({"type":"NFD"})", "\u00e9"));
  EXPECT_EQ("fi2", normalized(R"({"type":"NFKC"})", "\ufb01\u00b2"));
  EXPECT_EQ("1\u20444", normalized(R"({"type":"NFKD"})", "\u00bc"));
  EXPECT_EQ("a__b", normalized(R"({"type":"Replace","pattern":{"String":" "},"content":"_"})", "a  b"));
  EXPECT_EQ("a_b", normalized(R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":"_"})", "a   b"));
  const char* prepend = R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"}]})";
  EXPECT_EQ("_a", normalized(prepend, "a"));
  EXPECT_EQ("", normalized(prepend, ""));
  refuses<std::invalid_argument>("'Lowercase'", [] { normalized(R"({"type":"Lowercase"})", "A"); });
}

Words cut(const char* json, std::string_view text) {
  Pieces pieces{.list = {text}, .at_start = true, .owned = {}};
  read_cutter(Json::parse(json))->cut(pieces);
  return {pieces.list.begin(), pieces.list.end()};
}
Words behaved(const std::string& behavior, const char* text, bool invert = false) {
  const Json split{
      {"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}};
  return cut(split.dump().c_str(), text);
}
// The examples of the documentation of `tokenizers`.
TEST(Cutters, BehavioursOfSplit) {
  const char* text = "the-final--countdown";
  EXPECT_EQ((Words{"the", "-", "final", "-", "-", "countdown"}), behaved("Isolated", text));
  EXPECT_EQ((Words{"the", "final", "countdown"}), behaved("Removed", text));
  EXPECT_EQ((Words{"-", "-", "-"}), behaved("Removed", text, true));
  EXPECT_EQ((Words{"the-", "final-", "-", "countdown"}), behaved("MergedWithPrevious", text));
  EXPECT_EQ((Words{"the", "-final", "-", "-countdown"}), behaved("MergedWithNext", text));
  EXPECT_EQ((Words{"the", "-", "final", "--", "countdown"}), behaved("Contiguous", text));
  refuses<std::invalid_argument>("'Sideways'", [&] { behaved("Sideways", text); });
}
TEST(Cutters, EmptyMatchesCut) {
  EXPECT_EQ((Words{"a", "Bc", "D"}),
            cut(R"x({"type":"Split","pattern":{"Regex":"(?=\\p{Lu})"},"behavior":"Isolated"})x", "aBcD"));
}
TEST(Cutters, EachKind) {
  EXPECT_EQ((Words{"a", "1", "\u00b2", "b"}),
            cut(R"({"type":"Digits","individual_digits":true})", "a1\u00b2b"));
  EXPECT_EQ((Words{"a", "12", "b"}), cut(R"({"type":"Digits","individual_digits":false})", "a12b"));
  EXPECT_EQ((Words{" it", "'s", " 7"}), cut(R"({"type":"ByteLevel","add_prefix_space":true})", "it's 7"));
  EXPECT_EQ((Words{"it's 7"}),
            cut(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", "it's 7"));
  EXPECT_EQ((Words{"_a", "_b"}), cut(R"({"type":"Metaspace","replacement":"_"})", "a b"));
  EXPECT_EQ((Words{"a_b"}),
            cut(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"never","split":false})", "a b"));
  const char* first = R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
      {"type":"Metaspace","replacement":"_","prepend_scheme":"first"}]})";
  EXPECT_EQ((Words{"_a", "1", "b"}), cut(first, "a1b"));
  refuses<std::invalid_argument>("'Whitespace'", [] { cut(R"({"type":"Whitespace"})", ""); });
  refuses<std::invalid_argument>("after ByteLevel", [] {
    cut(R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})", "");
  });
}

Words found(const char* pattern, std::string_view text) {
  const Regex regex(pcre2_of_oniguruma(pattern));
  Regex::Search search(regex);
  Words words;
  regex.each(text, search, [&](size_t a, size_t b) { words.emplace_back(text.substr(a, b - a)); });
  return words;
}
TEST(Oniguruma, WhatPcre2ReadsOtherwise) {
  EXPECT_EQ((Words{"\u3000"}), found("\\s", "a\u180e\u3000"));
  EXPECT_EQ((Words{"a\u180e"}), found("\\S+", "a\u180e\u3000"));
  EXPECT_EQ((Words{"a\u0301_\u00b2"}), found("\\w+", "a\u0301_\u00b2-"));
  EXPECT_EQ((Words{"\U0001fa77"}), found("\\p{S}", "a\U0001fa77")) << "a symbol since Unicode 15";
  EXPECT_EQ((Words{"a", "\u6f22"}), found("[^\\p{P}\\s]", "a, \u6f22"));
  EXPECT_EQ((Words{"\u6f22"}), found("\\p{Han}", "\u6f22\u3001")) << "the script, not its extensions";
  EXPECT_EQ((Words{"a", "b"}), found("^.", "a\nb"));
  EXPECT_EQ((Words{"'\u017f", "'LL"}), found("(?i:'s|'ll)", "'\u017f 'LL"));
  EXPECT_EQ((Words{"aa"}), found("a{,2}b?\\u0061*", "aa")) << "{,n} begins at 0";
  EXPECT_EQ((Words{"\v"}), found("\\v", "\n\v"));
}
TEST(Oniguruma, RefusesWhatItDoesNotTranslate) {
  for (const char* pattern : {"\\b", "\\h", "[a&&b]", "[a[b]]", "[\\S]", "(?m:.)", "a{1,2}+", "(*FAIL)", "[a",
                              "\\", "a{b", "\\u12", "[]", "(?<name>a)", "\\pL"})
    refuses<std::invalid_argument>("offset", [&] { pcre2_of_oniguruma(pattern); });
  EXPECT_THROW(found("\\p{Klingon}", ""), std::runtime_error);
}

using Found = std::vector<std::pair<std::string, int32_t>>;
Found split(const std::vector<AddedToken>& tokens, std::string_view text, bool special = true) {
  AddedTokens added;
  for (const auto& token : tokens) added.add(token);
  Found all;
  added.split(text, special, [&](std::string_view piece, int32_t id) { all.emplace_back(piece, id); });
  return all;
}
TEST(AddedTokens, LeftmostThenLongest) {
  EXPECT_EQ((Found{{"x", -1}, {"abc", 2}, {"d", -1}, {"ab", 1}}),
            split({{"ab", 1}, {"abc", 2}, {"bcd", 3}, {"", 4}, {"ab", 5}}, "xabcdab"));
}
TEST(AddedTokens, SpecialOnesOnlyWhenAsked) {
  EXPECT_EQ((Found{{"<s>", -1}, {"<u>", 2}}), split({{"<s>", 1, true}, {"<u>", 2}}, "<s><u>", false));
}
TEST(AddedTokens, WordsAndWhiteSpace) {
  const AddedToken word{
      .text = "on", .id = 1, .special = false, .single_word = true, .lstrip = false, .rstrip = false};
  EXPECT_EQ((Found{{"on", 1}, {" one \u00e9on ", -1}, {"on", 1}, {".", -1}}),
            split({word}, "on one \u00e9on on."));
  const AddedToken wide{
      .text = "<m>", .id = 1, .special = false, .single_word = false, .lstrip = true, .rstrip = true};
  EXPECT_EQ((Found{{"a", -1}, {"\u3000 <m>\n", 1}, {"<m>", 1}, {"b", -1}}),
            split({wide}, "a\u3000 <m>\n<m>b"));
}

std::string decoded(const char* json, std::vector<Spelled> tokens) {
  read_decoder(Json::parse(json))->apply(tokens);
  std::string text;
  for (const auto& token : tokens) text += token.text;
  return text;
}
TEST(Decoders, EachKind) {
  EXPECT_EQ("a \u0120", decoded(R"({"type":"ByteLevel"})", {{"a\u0120"}, {"\u0120", true}}));
  EXPECT_EQ("a\n<0x0A>", decoded(R"({"type":"ByteFallback"})", {{"a"}, {"<0x0A>"}, {"<0x0A>", true}}));
  EXPECT_EQ("a b", decoded(R"({"type":"Metaspace","replacement":"_"})", {{"_a"}, {"_b"}}));
  const char* sequence =
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},
      {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})";
  EXPECT_EQ(" a b", decoded(sequence, {{"__a"}, {"_b"}}));
  refuses<std::invalid_argument>("'WordPiece'", [] { decoded(R"({"type":"WordPiece"})", {}); });
}

// Units a, b, c, "▁" and the bytes of "é"; "▁a", "ab".
Json toy() {
  return Json::parse(R"({"added_tokens":[{"id":9,"content":"<s>","special":true,"normalized":false}],
    "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},
                  {"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},
    "model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"merges":["\u2581 a",["a","b"]],
             "vocab":{"<unk>":0,"a":1,"b":2,"c":3,"\u2581":4,"<0xC3>":5,"<0xA9>":6,"\u2581a":7,"ab":8}}})");
}
struct Files {
  test::TempDir dir;
  std::unique_ptr<Tokenizer> open(const Json& json, const Json& config = {}) {
    test::write(dir / "tokenizer.json", json.dump());
    test::write(dir / "tokenizer_config.json", config.is_null() ? "{}" : config.dump());
    return tokenizer_from_json(dir / "tokenizer.json");
  }
};

TEST(TokenizerFromJson, CharactersBytesAndTheUnknown) {
  const auto tokenizer = Files().open(toy());
  EXPECT_EQ((Ids{7, 2, 7, 3}), tokenizer->encode("ab ac"));
  EXPECT_EQ((Ids{4, 3, 8}), tokenizer->encode("cab"));
  EXPECT_EQ((Ids{4, 5, 6, 0, 1}), tokenizer->encode("éxyza")) << "one <unk> for xyz";
  EXPECT_EQ((Ids{9, 7, 9}), tokenizer->encode("<s>a<s>"));
  EXPECT_EQ((Ids{4, 0}), tokenizer->encode("<s>", false));
  EXPECT_EQ((Ids{}), tokenizer->encode(""));
  EXPECT_EQ(10, tokenizer->size());
  EXPECT_THROW(tokenizer->encode("\xff"), std::invalid_argument);
  EXPECT_THROW(tokenizer->decode({10}), std::invalid_argument);
  auto json = toy();
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ((Ids{4, 0, 0}), Files().open(json)->encode("xy"));
  json["model"]["unk_token"] = nullptr;
  EXPECT_EQ((Ids{7, 2}), Files().open(json)->encode("axb")) << "without an unknown token it is left out";
  EXPECT_EQ((Ids{4, 3, 8}), Files().open(json)->encode("caxb")) << "and separates nothing";
}
TEST(TokenizerFromJson, IgnoreMergesTakesWholeWords) {
  auto json = toy();
  json["normalizer"] = nullptr;
  json["model"]["vocab"]["cab"] = 10;
  EXPECT_EQ((Ids{3, 8}), Files().open(json)->encode("cab"));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ((Ids{10}), Files().open(json)->encode("cab"));
}
TEST(TokenizerFromJson, MarksAreCutOnlyWhereNoMergeCrosses) {
  auto json = toy();
  json["model"]["vocab"]["c\u2581a"] = 10;
  json["model"]["merges"].push_back(Json::array({"c", "\u2581a"}));
  EXPECT_EQ((Ids{4, 10, 2}), Files().open(json)->encode("c ab"));
  EXPECT_EQ((Ids{4, 2, 7, 2}), Files().open(json)->encode("b ab"));
}
TEST(TokenizerFromJson, BosIsNeverEncodedAndAlwaysRecorded) {
  auto json = toy();
  EXPECT_EQ(-1, Files().open(json)->bos());
  EXPECT_EQ(9, Files().open(json, {{"bos_token", "<s>"}})->bos());
  EXPECT_FALSE(Files().open(json, {{"bos_token", "<s>"}})->adds_bos());
  EXPECT_TRUE(Files().open(json, {{"bos_token", {{"content", "<s>"}}}, {"add_bos_token", true}})->adds_bos());
  json["post_processor"] = Json::parse(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},
      {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],
       "special_tokens":{"<s>":{"id":"<s>","ids":[9],"tokens":["<s>"]}}}]})");
  EXPECT_TRUE(Files().open(json)->adds_bos());
  EXPECT_EQ(9, Files().open(json)->bos());
  EXPECT_EQ((Ids{7}), Files().open(json)->encode("a"));
  EXPECT_FALSE(Files().open(json, {{"add_bos_token", false}})->adds_bos());
}
TEST(TokenizerFromJson, TheDigestSeesEveryPart) {
  const auto digest = [](auto change) {
    auto json = toy();
    change(json);
    return Files().open(json)->digest();
  };
  const auto base = digest([](Json&) {});
  EXPECT_EQ(base, digest([](Json& j) { j["truncation"] = nullptr; }));
  EXPECT_NE(base, digest([](Json& j) { std::swap(j["model"]["merges"][0], j["model"]["merges"][1]); }));
  EXPECT_NE(base, digest([](Json& j) { j["model"]["vocab"]["new"] = 10; }));
  EXPECT_NE(base, digest([](Json& j) { j["added_tokens"][0]["special"] = false; }));
  EXPECT_NE(base, digest([](Json& j) { j["normalizer"] = nullptr; }));
  EXPECT_NE(base, digest([](Json& j) { j["pre_tokenizer"] = {{"type", "Digits"}}; }));
}

TEST(TokenizerFromJsonRefuses, WhatItDoesNotKnowByName) {
  const auto unknown = [](const std::string& named, auto change) {
    auto json = toy();
    change(json);
    refuses<std::invalid_argument>(named, [&] { Files().open(json); });
  };
  unknown("'Unigram'", [](Json& j) { j["model"]["type"] = "Unigram"; });
  unknown("'WordPiece'", [](Json& j) { j["model"]["type"] = "WordPiece"; });
  unknown("dropout", [](Json& j) { j["model"]["dropout"] = 0.1; });
  unknown("'##'", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; });
  unknown("'</w>'", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; });
  unknown("'BertProcessing'", [](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; });
  unknown("'Strip'", [](Json& j) { j["normalizer"] = {{"type", "Strip"}}; });
}
TEST(TokenizerFromJsonRefuses, EachLie) {
  const auto lie = [](const std::string& named, auto change, const Json& config = {}) {
    auto json = toy();
    change(json);
    refuses<std::runtime_error>(named, [&] { Files().open(json, config); });
  };
  lie("'q'", [](Json& j) { j["model"]["merges"].push_back("a q"); });
  lie("3 parts", [](Json& j) { j["model"]["merges"] = {{"a", "b", "c"}}; });
  lie("a space", [](Json& j) { j["model"]["merges"] = {"ab"}; });
  lie("'<no>'", [](Json& j) { j["model"]["unk_token"] = "<no>"; });
  lie("'<s>' has id 3", [](Json& j) { j["added_tokens"][0]["id"] = 3; });
  lie("'a' has id 20", [](Json& j) { j["added_tokens"].push_back({{"id", 20}, {"content", "a"}}); });
  lie("-1", [](Json& j) { j["model"]["vocab"]["new"] = -1; });
  lie("1.5", [](Json& j) { j["model"]["vocab"]["new"] = 1.5; });
  lie("expected 0 to 262165", [](Json& j) { j["model"]["vocab"]["new"] = 300000; });
  lie("expected an object", [](Json& j) { j["model"]["vocab"] = 1e300; });
  lie("Strip: start is -1", [](Json& j) {
    j["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}};
  });
  lie("nested deeper than 100", [](Json& j) {
    for (int i = 0; i < 200; ++i) j["extra"] = Json::array({std::move(j["extra"])});
  });
  lie("1000000000", [](Json& j) { j["model"]["vocab"]["new"] = 1000000000; });
  lie("model", [](Json& j) { j.erase("model"); });
  lie("vocab", [](Json& j) { j["model"].erase("vocab"); });
  lie("'<bos>'", [](Json&) {}, {{"bos_token", "<bos>"}});
  lie("none is named", [](Json&) {}, {{"add_bos_token", true}});
  test::TempDir dir;
  EXPECT_THROW(tokenizer_from_json(dir / "tokenizer.json"), std::runtime_error);
  test::write(dir / "tokenizer.json", "{");
  EXPECT_THROW(tokenizer_from_json(dir / "tokenizer.json"), std::runtime_error);
}

}  // namespace
}  // namespace oscar
