// Conversations as the text that a model was trained to see them in.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libdump/corpus.h"
#include "libdump/tokenizer/tokenizer.h"

namespace oscar {

// What stands around the content of a message.
struct ChatTurn {
  std::string_view open, close;
  bool trim = false;  // the content loses the white space around it
};

enum class SystemPlace : uint8_t {
  Anywhere,  // a turn like the others
  First,     // a turn, of the first message alone
  FirstUser  // no turn: the first message, it goes before the content of the user's that follows
};

struct ChatFormat {
  std::string_view name, summary;
  // A chat template is of this format when all of `known_by` stand in it and none of `not_by`.
  std::vector<std::string_view> known_by, not_by;
  std::vector<std::string_view> tokens;  // what of the markup below is special: one id each
  bool bos;                              // a conversation begins with the tokenizer's BOS
  std::string_view preamble;             // then this
  SystemPlace system_place;
  ChatTurn system, user, assistant;
  std::string_view last_close;   // of an assistant's message that ends the conversation; "": as the others
  std::string_view no_thought;   // before the content of an assistant that does not begin with <think>
  std::string_view also_system;  // another name of the role; "": none
};
std::span<const ChatFormat> chat_formats();
// By name; std::invalid_argument with the names there are.
const ChatFormat& find_chat_format(std::string_view name);
// By the special tokens in a chat template (Jinja, which is not run); std::invalid_argument when it is none of the table's.
const ChatFormat& recognise_chat_format(std::string_view chat_template, const std::string& where);

// The template that came with a checkpoint: tokenizer.chat_template of a GGUF file; of a directory chat_template.jinja, else
// chat_template of tokenizer_config.json (of several, the one named "default"). "": none.
std::string read_chat_template(const std::filesystem::path& checkpoint);

struct ChatPiece {
  std::string text;
  bool token;  // a special token of the format; else text, in which nothing is special
};
// No two pieces of text are neighbours: they are tokenized together, as the whole is by others. Nothing is made up: no default system
// message, date or tool list that a template may add. `source` begins the messages of std::invalid_argument: a conversation without
// messages, a role that the format does not have, a system message where it has no place.
std::vector<ChatPiece> render(const ChatFormat& format, const Conversation& messages,
                              const std::string& source);

// Conversations to ids.
class ChatEncoder {
 public:
  // std::invalid_argument when a special token of the format is not one id of the tokenizer, or changes how it reads the text beside
  // it; when the format begins with a BOS that it has not. Without `bos` the format's BOS is left out.
  ChatEncoder(const ChatFormat& format, const Tokenizer& tokenizer, bool bos);
  // Special tokens in the content of a message are text like any other. Where the tokenizer takes one of the format's for the token
  // wherever it stands (user-defined ones), such a content is std::invalid_argument.
  std::vector<int32_t> encode(const Conversation& messages, const std::string& source) const;

 private:
  const ChatFormat& format_;
  const Tokenizer& tokenizer_;
  bool bos_;
  std::map<std::string, int32_t, std::less<>> ids_;
  std::vector<std::string_view> always_;  // tokens that the tokenizer sees in any text
};

}  // namespace oscar
