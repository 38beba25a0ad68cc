#include "libdump/corpus.h"

#include <fcntl.h>
#include <unistd.h>

#include <random>

#include "formats/npy.h"
#include "tests/support/support.h"

namespace oscar {
namespace {

const std::string& text(const Document& document) {
  return std::get<std::string>(document);
}
const std::vector<int32_t>& ids(const Document& document) {
  return std::get<std::vector<int32_t>>(document);
}

class Corpus : public ::testing::Test {
 protected:
  std::vector<Document> read(const std::string& name, std::string_view content,
                             const CorpusOptions& options = {}) {
    test::write(folder_ / name, content);
    return read_corpus({folder_ / name}, options);
  }
  std::vector<Document> read_back() { return read_corpus({folder_ / "ids.npy"}, {}); }
  template <typename T>
  std::vector<Document> read_ids(Shape shape, std::vector<T> values) {
    write_npy(folder_ / "ids.npy", make_tensor<T>(std::move(shape), std::move(values)));
    return read_back();
  }
  // The message must contain every one of the words.
  void refuses(const std::string& name, std::string_view content, const std::vector<std::string>& words,
               const CorpusOptions& options = {}) {
    try {
      read(name, content, options);
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& e) {
      for (const auto& word : words)
        EXPECT_NE(std::string::npos, std::string(e.what()).find(word)) << e.what();
      EXPECT_NE(std::string::npos, std::string(e.what()).find(name)) << e.what();
    }
  }
  template <typename T>
  void refuses_ids(Shape shape, std::vector<T> values, const std::vector<std::string>& words) {
    try {
      read_ids<T>(std::move(shape), std::move(values));
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& e) {
      for (const auto& word : words)
        EXPECT_NE(std::string::npos, std::string(e.what()).find(word)) << e.what();
    }
  }
  test::TempDir folder_;
};

TEST_F(Corpus, ATextFileIsOneDocument) {
  const auto documents = read("a.txt", "one\n\ntwo ñ\n");
  ASSERT_EQ(1u, documents.size());
  EXPECT_EQ("one\n\ntwo ñ\n", text(documents[0]));
  EXPECT_NE(std::string::npos, documents[0].source.find("a.txt"));
}

TEST_F(Corpus, ParagraphsAreDocumentsWhenAsked) {
  const auto documents =
      read("a.txt", "one\r\n\r\ntwo\n\n\n\nthree", {.fields = {}, .paragraph_separator = "\n\n"});
  ASSERT_EQ(3u, documents.size());
  EXPECT_EQ("one", text(documents[0]));
  EXPECT_EQ("two", text(documents[1]));
  EXPECT_EQ("three", text(documents[2]));
}

TEST_F(Corpus, ByteOrderMarkAndCarriageReturnsGo) {
  EXPECT_EQ("a\nb\rc\n", text(read("a.txt",
                                   "\xef\xbb\xbf"
                                   "a\r\nb\rc\r\n")[0]));
  EXPECT_EQ("a\r\n\r", text(read("a.txt", "a\r\r\n\r")[0]));
}

TEST_F(Corpus, AnyOtherExtensionIsText) {
  EXPECT_EQ("# hi", text(read("README.md", "# hi")[0]));
}

TEST_F(Corpus, JsonLinesOneDocumentALine) {
  const auto documents = read(
      "a.jsonl",
      "\xef\xbb\xbf{\"text\": \"one\\r\\n\"}\r\n\n  \n{\"prompt\": \"two\", \"id\": 3}\n{\"text\": \"\"}\n"
      "{\"prompt\": \"no\", \"text\": \"\\ud83d\\ude00\"}");
  ASSERT_EQ(3u, documents.size());
  EXPECT_EQ("one\r\n", text(documents[0])) << "strings are taken as they are";
  EXPECT_EQ("two", text(documents[1]));
  EXPECT_EQ("😀", text(documents[2])) << "the first of the fields wins, not the first in the line";
  EXPECT_NE(std::string::npos, documents[1].source.find("line 4"));
}

TEST_F(Corpus, JsonLinesFieldByName) {
  EXPECT_EQ("x", text(read("a.JSONL", R"({"text": "no", "content": "x"})",
                           {.fields = {"content"}, .paragraph_separator = ""})[0]));
}

TEST_F(Corpus, IdsOfOneDimensionAreOneDocument) {
  const auto documents = read_ids<int64_t>({3}, {5, 0, 49151});
  ASSERT_EQ(1u, documents.size());
  EXPECT_EQ((std::vector<int32_t>{5, 0, 49151}), ids(documents[0]));
}

TEST_F(Corpus, IdsOfTwoDimensionsAreADocumentARow) {
  const auto documents = read_ids<int32_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  ASSERT_EQ(2u, documents.size());
  EXPECT_EQ((std::vector<int32_t>{4, 5, 6}), ids(documents[1]));
  EXPECT_EQ((std::vector<int32_t>{7}), ids(read_ids<uint8_t>({1}, {7})[0]));
}

TEST_F(Corpus, FilesInTheOrderGiven) {
  test::write(folder_ / "b.txt", "b");
  test::write(folder_ / "a.jsonl", "{\"text\": \"a\"}");
  const auto documents = read_corpus({folder_ / "b.txt", folder_ / "a.jsonl"}, {});
  ASSERT_EQ(2u, documents.size());
  EXPECT_EQ("b", text(documents[0]));
}

TEST_F(Corpus, ADashIsStandardInput) {
  test::write(folder_ / "in", "from a pipe\r\n");
  const int kept = ::dup(0), file = ::open((folder_ / "in").c_str(), O_RDONLY);
  ::dup2(file, 0);
  const auto documents = read_corpus({"-"}, {});
  ::dup2(kept, 0);
  ::close(kept);
  ::close(file);
  ASSERT_EQ(1u, documents.size());
  EXPECT_EQ("from a pipe\n", text(documents[0]));
  EXPECT_EQ("standard input", documents[0].source);
}

TEST_F(Corpus, DamagedFilesAreReadOrRefused) {
  const std::string whole =
      "\xef\xbb\xbf{\"text\": \"caf\u00e9 \\ud83d\\ude00\", \"n\": [1, 2.5e3, null]}\r\n{\"prompt\": "
      "\"b\"}\n";
  std::mt19937 random(5);
  size_t accepted = 0;
  for (int trial = 0; trial < 500; ++trial) {
    std::string damaged = whole.substr(0, random() % (whole.size() + 1));
    for (size_t changes = random() % 3; changes-- && !damaged.empty();)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    for (const char* name : {"a.txt", "a.jsonl"}) {
      try {
        accepted += read(name, damaged).size() > 0;
      } catch (const std::invalid_argument&) {
      }
    }
  }
  EXPECT_GT(accepted, 0u);
}

TEST_F(Corpus, RefusesNoFiles) {
  EXPECT_THROW(read_corpus({}, {}), std::invalid_argument);
}
TEST_F(Corpus, RefusesStandardInputTwice) {
  EXPECT_THROW(read_corpus({"-", "-"}, {}), std::invalid_argument);
}
TEST_F(Corpus, RefusesAMissingFile) {
  EXPECT_THROW(read_corpus({folder_ / "none.txt"}, {}), std::invalid_argument);
}
TEST_F(Corpus, RefusesADirectory) {
  EXPECT_THROW(read_corpus({folder_.path()}, {}), std::invalid_argument);
}
TEST_F(Corpus, RefusesAnEmptyFile) {
  refuses("a.txt", "", {"empty"});
}
TEST_F(Corpus, RefusesABareByteOrderMark) {
  refuses("a.txt", "\xef\xbb\xbf", {"no text"});
}
TEST_F(Corpus, RefusesInvalidUtf8WithItsOffset) {
  refuses("a.txt", "abc\xff", {"offset 3", "0xff"});
}
TEST_F(Corpus, RefusesATruncatedCharacter) {
  refuses("a.txt", "0123456789\xe2\x82", {"offset 10"});
}
TEST_F(Corpus, RefusesAnOverlongForm) {
  refuses("a.txt", "a\xc0\xaf", {"offset 1"});
}
TEST_F(Corpus, RefusesASurrogate) {
  refuses("a.txt", "a\xed\xa0\x80", {"offset 1"});
}
TEST_F(Corpus, RefusesUtf16AndSaysSo) {
  refuses("a.txt",
          std::string("\xff\xfe"
                      "a\0",
                      4),
          {"UTF-16", "iconv"});
}
TEST_F(Corpus, RefusesALineThatIsNotJson) {
  refuses("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": ", {"line 3", "not JSON"});
}
TEST_F(Corpus, RefusesTwoObjectsOnALine) {
  refuses("a.jsonl", "{\"text\": \"a\"} {\"text\": \"b\"}", {"line 1"});
}
TEST_F(Corpus, RefusesALineThatIsNoObject) {
  refuses("a.jsonl", "[\"a\"]", {"line 1", "array"});
}
TEST_F(Corpus, RefusesAMissingField) {
  refuses("a.jsonl", "{\"body\": \"a\"}", {"line 1", "text, messages, prompt", "body"});
}
TEST_F(Corpus, RefusesAFieldThatIsNoString) {
  refuses("a.jsonl", "{\"text\": 3}", {"line 1", "'text'", "number"});
}
TEST_F(Corpus, AListOfMessagesIsAConversation) {
  const auto documents = read(
      "a.jsonl", R"({"prompt": "not this", "messages": [{"role": "user", "content": " a\r\n"}, )"
                 R"({"content": "", "role": "assistant", "tool_calls": null, "name": ""}], "tools": []})");
  ASSERT_EQ(documents.size(), 1u);
  const auto& messages = std::get<Conversation>(documents[0]);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, "user");
  EXPECT_EQ(messages[0].content, " a\r\n");
  EXPECT_EQ(messages[1].role, "assistant");
  EXPECT_EQ(messages[1].content, "");
  EXPECT_EQ(documents[0].source, (folder_ / "a.jsonl").string() + ": line 1");
}
TEST_F(Corpus, AConversationMayHaveAnotherField) {
  const auto line = R"({"text": "a", "talk": [{"role": "user", "content": "b"}]})";
  EXPECT_EQ(std::get<Conversation>(read("a.jsonl", line, {.fields = {"talk"}})[0])[0].content, "b");
}
TEST_F(Corpus, RefusesConversationsThatItWouldReadInPart) {
  refuses("a.jsonl", R"({"messages": []})", {"line 1", "no messages"});
  refuses("a.jsonl", R"({"messages": ["hello"]})", {"line 1", "message 1", "role", "string"});
  refuses("a.jsonl", R"({"messages": [{"content": "a"}]})", {"message 1", "'role'", "none"});
  refuses("a.jsonl", R"({"messages": [{"role": "user", "content": null}]})",
          {"message 1", "'content'", "null"});
  refuses("a.jsonl", R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
          {"'content'", "array"});
  refuses("a.jsonl", R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]})",
          {"message 1", "tool_calls", "rendered"});
  refuses("a.jsonl", R"({"messages": [{"role": "user", "content": ""}], "tools": [{}]})",
          {"line 1", "tools"});
}
TEST_F(Corpus, RefusesJsonLinesWithoutText) {
  refuses("a.jsonl", "\n{\"text\": \"\"}\n", {"no text"});
}
TEST_F(Corpus, RefusesALoneSurrogateInJson) {
  refuses("a.jsonl", R"({"text": "\ud800"})", {"line 1"});
}
TEST_F(Corpus, RefusesNegativeIdsWithTheirPlace) {
  refuses_ids<int32_t>({2, 2}, {1, 2, 3, -4}, {"row 1", "position 1", "-4"});
}
TEST_F(Corpus, RefusesIdsAbove31Bits) {
  refuses_ids<int64_t>({1}, {int64_t{1} << 31}, {"position 0", "2147483648"});
}
TEST_F(Corpus, RefusesFloatIds) {
  refuses_ids<float>({1}, {1.f}, {"F32"});
}
TEST_F(Corpus, RefusesThreeDimensions) {
  refuses_ids<int32_t>({1, 1, 1}, {1}, {"[1, 1, 1]"});
}
TEST_F(Corpus, RefusesNoIds) {
  refuses_ids<int32_t>({0}, {}, {"no text"});
}

}  // namespace
}  // namespace oscar
