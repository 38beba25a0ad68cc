// Conversations in each chat format, as the public templates render them; which template is of which format.
#include "libdump/chat_format.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "libdump/tokenizer/bpe.h"
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar {
namespace {

using Ids = std::vector<int32_t>;

const Conversation kTalk{
    {"system", "Be brief. "}, {"user", " Hi!\n"}, {"assistant", "Hello. "}, {"user", "Bye"}};

std::string rendered(std::string_view format, const Conversation& talk) {
  std::string text;
  bool was_token = true;
  for (const auto& piece : render(find_chat_format(format), talk, "talk")) {
    EXPECT_TRUE(was_token || piece.token) << format << ": two pieces of text side by side";
    was_token = piece.token;
    text += piece.text;
  }
  return text;
}

template <typename Does>
void refuses(const Does& does, const std::vector<std::string>& words) {
  try {
    does();
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& e) {
    for (const auto& word : words)
      EXPECT_NE(std::string::npos, std::string(e.what()).find(word)) << e.what() << "\n lacks " << word;
  }
}

// What apply_chat_template of transformers gives for kTalk, without the BOS and without what the template adds
// of its own; `part` is a piece of the template.
struct Golden {
  const char* name;
  bool bos;
  const char* talk;
  const char* part;
};
const std::string kHarmony =
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: "
    "2024-06\n\n"
    "Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
    "message."
    "<|end|>";
const std::string kHarmonyTalk =
    kHarmony +
    "<|start|>developer<|message|># Instructions\n\nBe brief. \n\n<|end|><|start|>user<|message|> "
    "Hi!\n<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Hello. <|end|><|start|>user<|message|>Bye<|end|>";
const Golden kGolden[] = {
    {"chatml", false,
     "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n "
     "Hi!\n<|im_end|>\n<|im_start|>assistant\nHello. "
     "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n",
     "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"},
    {"llama3", true,
     "<|start_header_id|>system<|end_header_id|>\n\nBe "
     "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
     "Hi!<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|><|start_header_id|>user"
     "<|end_header_id|>\n\nBye<|eot_id|>",
     "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
     "'<|eot_id|>'"},
    {"gemma", true,
     "<start_of_turn>user\nBe brief. \n\nHi!<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
     "<start_of_turn>user\nBye<end_of_turn>\n",
     "{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else \"\") }}{{ "
     "'<end_of_turn>\n' }}"},
    {"harmony", false, kHarmonyTalk.c_str(),
     "{{- \"<|start|>assistant<|channel|>final<|message|>\" + message.content + \"<|end|>\" }}"},
    {"glm", false,
     "[gMASK]<sop><|system|>\nBe brief. <|user|>\n Hi!\n<|assistant|>\n<think></think>\nHello.<|user|>\nBye",
     "[gMASK]<sop>{%- if m.role == 'user' -%}<|user|>\n<|assistant|>{{ '\\n<think></think>' }}"},
    {"glm4", false, "[gMASK]<sop><|system|>\nBe brief. <|user|>\n Hi!\n<|assistant|>\nHello. <|user|>\nBye",
     "[gMASK]<sop>{%- if role == 'user' %}<|user|>\n{{ content }}<|assistant|>\n"},
    {"minimax", false,
     "]~!b[]~b]system\nBe brief. [e~[\n]~b]user\n Hi!\n[e~[\n]~b]ai\nHello. [e~[\n]~b]user\nBye[e~[\n",
     "{{- ']~!b[' ~ ']~b]system' ~ '\\n' }}{{- '[e~[' ~ '\\n' }}"},
    {"deepseek", true, "Be brief. <｜User｜> Hi!\n<｜Assistant｜>Hello. <｜end▁of▁sentence｜><｜User｜>Bye",
     "{{'<｜User｜>' + message['content']}}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}"
     "{{'<｜Assistant｜><think>\\n'}}"},
    {"deepseek-v3.1", true,
     "Be brief. <｜User｜> Hi!\n<｜Assistant｜></think>Hello. <｜end▁of▁sentence｜><｜User｜>Bye",
     "{{'<｜User｜>' + message['content']}}{{'<｜Assistant｜></think>'}}{{content + "
     "'<｜end▁of▁sentence｜>'}}"},
};

TEST(ChatFormat, EachAsItsTemplateRendersIt) {
  ASSERT_EQ(std::size(kGolden), chat_formats().size());
  for (const Golden& golden : kGolden) {
    EXPECT_EQ(rendered(golden.name, kTalk), golden.talk) << golden.name;
    EXPECT_EQ(find_chat_format(golden.name).bos, golden.bos) << golden.name;
  }
}
TEST(ChatFormat, IsRecognisedByTheTokensOfTheTemplate) {
  for (const Golden& golden : kGolden) {
    EXPECT_EQ(recognise_chat_format(golden.part, "model").name, golden.name);
    int of = 0;  // whatever the order of the table
    for (const ChatFormat& format : chat_formats()) {
      const auto stands = [&](std::string_view text) {
        return std::string_view(golden.part).find(text) != std::string::npos;
      };
      of += std::ranges::all_of(format.known_by, stands) && std::ranges::none_of(format.not_by, stands);
    }
    EXPECT_EQ(of, 1) << golden.name;
  }
}
TEST(ChatFormat, AnUnknownTemplateIsRefusedWithWhatToDo) {
  const std::vector<std::string> what_to_do{"model", "render the conversations", "--chat-format", "chatml",
                                            "deepseek"};
  for (const char* unknown :
       {"[INST] {{ content }} [/INST]", "<|im_start|>user<|im_sep|>{{ content }}<|im_end|>",
        "[gMASK]<sop><|user|>{{ content }}<|assistant|></think>", ""})
    refuses([&] { recognise_chat_format(unknown, "model"); }, what_to_do);
  refuses([] { recognise_chat_format("", "model"); }, {"no chat template"});
  refuses([] { find_chat_format("vicuna"); }, {"--chat-format", "'vicuna'", "llama3"});
}
TEST(ChatFormat, RolesWithoutAPlaceAreRefused) {
  for (const auto& format : chat_formats())
    refuses(
        [&] {
          rendered(format.name, {{"user", "a"}, {"tool", "b"}});
        },
        {"talk: message 2", "'tool'", std::string(format.name), "assistant"});
  refuses([] { rendered("chatml", {{"developer", "a"}}); }, {"'developer'"});
  EXPECT_EQ(rendered("harmony", {{"developer", "a"}}), rendered("harmony", {{"system", "a"}}));
}
TEST(ChatFormat, ASystemMessageWhereTheTemplateWouldLoseItIsRefused) {
  for (const char* name : {"gemma", "harmony", "glm4", "minimax", "deepseek"})
    refuses([&] { rendered(name, {{"user", "a"}, {"system", "b"}}); }, {"message 2", name, "the first"});
  EXPECT_EQ(rendered("chatml", {{"user", "a"}, {"system", "b"}}),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n");
  refuses([] { rendered("gemma", {{"system", "a"}}); }, {"message 1", "user", "none"});
  refuses([] { rendered("gemma", {{"system", "a"}, {"assistant", "b"}}); }, {"message 1", "'assistant'"});
}
TEST(ChatFormat, EmptyContentIsAnEmptyTurn) {
  const Conversation empty{{"user", ""}, {"assistant", " "}};
  EXPECT_EQ(rendered("chatml", {{"user", ""}, {"assistant", ""}}),
            "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
  EXPECT_EQ(rendered("gemma", empty),
            "<start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\n<end_of_turn>\n");
  EXPECT_EQ(rendered("glm", empty), "[gMASK]<sop><|user|>\n<|assistant|>\n<think></think>");
  refuses([] { rendered("chatml", {}); }, {"talk", "no messages"});
}
TEST(ChatFormat, AThoughtTakesThePlaceOfTheEmptyOne) {
  const Conversation thought{{"assistant", "<think>a</think>b"}};
  EXPECT_EQ(rendered("glm", thought), "[gMASK]<sop><|assistant|>\n<think>a</think>b");
  EXPECT_EQ(rendered("deepseek-v3.1", thought), "<｜Assistant｜><think>a</think>b<｜end▁of▁sentence｜>");
}
TEST(ChatFormat, HarmonyEndsWithReturn) {
  EXPECT_EQ(
      rendered("harmony", {{"user", "a"}, {"assistant", "b"}}),
      kHarmony + "<|start|>user<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>");
}

// Every byte a token, then the tokens of the format, then BOS.
std::unique_ptr<Tokenizer> tokenizer_for(const ChatFormat& format, BpeVocabulary::Type type,
                                         bool bos = true) {
  BpeVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.tokens.push_back(token_of_bytes(std::string(1, static_cast<char>(byte))));
  vocabulary.types.assign(256, BpeVocabulary::Normal);
  for (const auto token : format.tokens) vocabulary.tokens.emplace_back(token);
  vocabulary.tokens.push_back("<BOS>");
  vocabulary.types.resize(vocabulary.tokens.size(), type);
  vocabulary.pretokenizer = "gpt-2";
  if (bos) vocabulary.bos = static_cast<int32_t>(vocabulary.tokens.size() - 1);
  return make_bpe_tokenizer(vocabulary, "test");
}

TEST(ChatEncoder, GivesTheIdsOfTheWholeText) {
  for (const auto& format : chat_formats()) {
    const auto tokenizer = tokenizer_for(format, BpeVocabulary::Control);
    const std::string text = rendered(format.name, kTalk);
    EXPECT_EQ(ChatEncoder(format, *tokenizer, false).encode(kTalk, "talk"), tokenizer->encode(text))
        << format.name;
    EXPECT_EQ(ChatEncoder(format, *tokenizer, true).encode(kTalk, "talk"),
              tokenizer->encode((format.bos ? "<BOS>" : "") + text))
        << format.name;
  }
}
TEST(ChatEncoder, SpecialTokensInContentStayText) {
  for (const auto& format : chat_formats()) {
    const auto tokenizer = tokenizer_for(format, BpeVocabulary::Control);
    const ChatEncoder encoder(format, *tokenizer, false);
    std::string all = "<BOS>";
    for (const auto token : format.tokens) all += token;
    const auto plain = encoder.encode({{"user", std::string(all.size(), '-')}}, "talk");
    const auto ids = encoder.encode({{"user", all}}, "talk");
    EXPECT_EQ(ids.size(), plain.size()) << format.name;
    EXPECT_EQ(std::ranges::count_if(ids, [](int32_t id) { return id >= 256; }),
              std::ranges::count_if(plain, [](int32_t id) { return id >= 256; }))
        << format.name;
    EXPECT_EQ(tokenizer->decode(ids), rendered(format.name, {{"user", all}}));
  }
}
TEST(ChatEncoder, RefusesContentThatTheTokenizerWouldMakeSpecial) {
  const auto& format = find_chat_format("chatml");
  const auto tokenizer = tokenizer_for(format, BpeVocabulary::UserDefined);
  const ChatEncoder encoder(format, *tokenizer, false);
  EXPECT_EQ(encoder.encode(kTalk, "talk"), tokenizer->encode(rendered("chatml", kTalk)));
  refuses(
      [&] {
        encoder.encode({{"user", "a<|im_end|>b"}}, "a.jsonl: line 7");
      },
      {"a.jsonl: line 7", "<|im_end|>", "take it out"});
}
TEST(ChatEncoder, RefusesATokenizerOfAnotherFormat) {
  const auto tokenizer = tokenizer_for(find_chat_format("chatml"), BpeVocabulary::Control, false);
  refuses([&] { ChatEncoder(find_chat_format("glm"), *tokenizer, true); },
          {"glm", "[gMASK]", "one token", "found 7"});
  const auto without_bos = tokenizer_for(find_chat_format("gemma"), BpeVocabulary::Control, false);
  refuses([&] { ChatEncoder(find_chat_format("gemma"), *without_bos, true); },
          {"gemma", "BOS", "--bos none"});
  EXPECT_NO_THROW(ChatEncoder(find_chat_format("gemma"), *without_bos, false));
}
// A token that takes the white space beside it along would change the ids.
TEST(ChatEncoder, RefusesTokensThatTakeWhiteSpaceAlong) {
  const test::TempDir folder;
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token = token_of_bytes(std::string(1, static_cast<char>(byte)));
    vocabulary += (byte ? ",\"" : "\"") + std::string(token == "\"" || token == "\\" ? "\\" : "") + token +
                  "\":" + std::to_string(byte);
  }
  for (const char* strip : {"lstrip", "rstrip", "normalized"}) {
    const auto added = [&](const char* token, int id) {
      return R"({"content":")" + std::string(token) + R"(","special":true,"id":)" + std::to_string(id) +
             ",\"" + strip + "\":true}";
    };
    test::write(
        folder / "tokenizer.json",
        R"({"added_tokens":[)" + added("<|im_start|>", 256) + "," + added("<|im_end|>", 257) +
            R"(],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE","vocab":{)" +
            vocabulary + R"(},"merges":[]}})");
    const auto tokenizer = tokenizer_from_json(folder / "tokenizer.json");
    const auto& format = find_chat_format("chatml");
    if (std::string_view(strip) == "normalized")
      EXPECT_EQ(ChatEncoder(format, *tokenizer, false).encode(kTalk, "talk"),
                tokenizer->encode(rendered("chatml", kTalk)));
    else
      refuses([&] { ChatEncoder(format, *tokenizer, false); }, {"<|im_start|>", "beside"});
  }
}

TEST(ChatTemplate, IsReadFromWhereTheCheckpointHasIt) {
  const test::TempDir folder;
  EXPECT_EQ(read_chat_template(folder.path()), "");
  test::write(folder / "tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(read_chat_template(folder.path()), "");
  test::write(folder / "tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(read_chat_template(folder.path()), "one");
  test::write(
      folder / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "two"}]})");
  EXPECT_EQ(read_chat_template(folder.path()), "two");
  test::write(folder / "tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THROW(read_chat_template(folder.path()), std::runtime_error);
  test::write(folder / "tokenizer_config.json", R"({"chat_template": )");
  EXPECT_THROW(read_chat_template(folder.path()), std::runtime_error);
  test::write(folder / "chat_template.jinja", "three");
  EXPECT_EQ(read_chat_template(folder.path()), "three");

  auto draft = test::toy_model();
  test::write_gguf(folder / "toy.gguf", draft);
  EXPECT_EQ(read_chat_template(folder / "toy.gguf"), "");
  draft.set("tokenizer.chat_template", std::string("four"));
  test::write_gguf(folder / "toy.gguf", draft);
  EXPECT_EQ(read_chat_template(folder / "toy.gguf"), "four");
}

TEST(ChatTemplate, SmolLM2IsChatMl) {
  OSCAR_NEED_MODEL(path);
  const auto& format = recognise_chat_format(read_chat_template(path), path.string());
  EXPECT_EQ(format.name, "chatml");
  const auto tokenizer = tokenizer_from_gguf(GgufFile::open(path));
  const auto ids = ChatEncoder(format, *tokenizer, true).encode(kTalk, "talk");
  EXPECT_EQ(ids, tokenizer->encode(rendered("chatml", kTalk)));
  EXPECT_EQ(std::ranges::count(ids, 1), 4);  // <|im_start|>
  EXPECT_EQ(std::ranges::count(ids, 2), 4);  // <|im_end|>
  const auto quoted = ChatEncoder(format, *tokenizer, true).encode({{"user", "<|im_end|>"}}, "talk");
  EXPECT_EQ(std::ranges::count(quoted, 2), 1);
}

}  // namespace
}  // namespace oscar
