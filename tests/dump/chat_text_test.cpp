// Conversations on the way from the command line to sequences.
#include <gtest/gtest.h>

#include <algorithm>

#include "libdump/calibration_text.h"
#include "libdump/dump.h"
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

class ChatText : public ::testing::Test {
 protected:
  ChatText() {
    draft_.set("tokenizer.chat_template",
               std::string("{{ '<|im_start|>' + role + content + '<|im_end|>' }}"));
    write("a.jsonl", R"({"messages": [{"role": "user", "content": "Hello <|im_end|>"}]})"
                     "\n"
                     R"({"text": "Plain <|im_end|>"})");
  }
  std::string write(const std::string& name, std::string_view text) {
    test::write(folder_ / name, text);
    return (folder_ / name).string();
  }
  CalibrationText read(const std::string& chat_format = "", std::optional<BosPolicy> bos = {},
                       const std::string& name = "a.jsonl") {
    test::write_gguf(folder_ / "toy.gguf", draft_);
    model_ = open_model(folder_ / "toy.gguf", Precision::Float32);
    return read_calibration_text(*model_, {folder_ / name}, {}, {},
                                 {.length = 512, .min_length = 1, .packing = Packing::Documents}, bos,
                                 chat_format);
  }
  void refuses(const std::vector<std::string>& words, const std::string& chat_format = "",
               const std::string& name = "a.jsonl") {
    try {
      read(chat_format, {}, name);
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& e) {
      for (const auto& word : words)
        EXPECT_NE(std::string::npos, std::string(e.what()).find(word)) << e.what();
    }
  }

  test::GgufDraft draft_ = test::toy_model();
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
};

TEST_F(ChatText, IsRenderedInTheFormatOfTheCheckpoint) {
  const auto text = read();
  EXPECT_EQ(text.chat_format, "chatml");
  EXPECT_EQ(text.conversations, 1);
  ASSERT_EQ(text.sequences.calibration.size(), 2u);
  const auto& talk = text.sequences.calibration[0];
  EXPECT_EQ(text.tokenizer->decode(talk), "<|im_start|>user\nHello <|im_end|><|im_end|>\n");
  EXPECT_EQ(std::ranges::count(talk, 2), 1) << "<|im_end|> in the content is text";
  EXPECT_EQ(std::ranges::count(text.sequences.calibration[1], 2), 1)
      << "in plain text it is the token, as before";
}
TEST_F(ChatText, SaysItsFormatInTheProvenance) {
  const auto text = read();
  const auto command = [&](const std::string& format) {
    return describe(*model_, text.tokenizer.get(), text.bos_policy, text.sequences, {}, format).command;
  };
  EXPECT_TRUE(command(text.chat_format).ends_with(" chat-format=chatml"));
  EXPECT_EQ(command("").find("chat"), std::string::npos);
}
TEST_F(ChatText, ANameGoesBeforeTheTemplate) {
  draft_.set("tokenizer.chat_template", std::string("[INST]"));
  EXPECT_EQ(read("chatml").chat_format, "chatml");
  refuses({"toy.gguf", "no known format", "--chat-format"});
  refuses({"glm", "[gMASK]"}, "glm");
}
TEST_F(ChatText, ANameWithoutConversationsIsRefused) {
  write("b.jsonl", R"({"text": "Plain"})");
  refuses({"--chat-format", "no conversations"}, "chatml", "b.jsonl");
  EXPECT_EQ(read("", {}, "b.jsonl").chat_format, "");
}
TEST_F(ChatText, TakesTheBosOfTextToo) {
  draft_.set("tokenizer.ggml.bos_token_id", 0u);
  const auto first = [&](std::optional<BosPolicy> bos) {
    return read("", bos).sequences.calibration[0].front();
  };
  EXPECT_EQ(first(BosPolicy::PerSequence), 0);
  EXPECT_EQ(first(BosPolicy::PerDocument), 0);
  EXPECT_EQ(first(BosPolicy::None), 1);
  EXPECT_EQ(first({}), 1);
}
TEST_F(ChatText, SaysWhichConversationIsAtFault) {
  write("c.jsonl",
        "\n"
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]})");
  refuses({"c.jsonl: line 2: message 2", "'tool'", "chatml"}, "", "c.jsonl");
}

}  // namespace
}  // namespace oscar
