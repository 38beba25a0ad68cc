// Where calibration text comes from: documents of text, of token ids, or conversations.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace oscar {

struct Message {
  std::string role, content;
};
using Conversation = std::vector<Message>;

// One document: text still to be tokenized, ids as they are, or a conversation that a chat format makes ids of.
struct Document : std::variant<std::string, std::vector<int32_t>, Conversation> {
  using variant::variant;
  std::string source;             // for messages: "notes.txt", "corpus.jsonl: line 12", "ids.npy: row 3"
  bool was_conversation = false;  // ids that take a BOS as text does
};

struct CorpusOptions {
  // .jsonl: the first of these fields that a line has; a string is text, a list of messages a conversation.
  std::vector<std::string> fields{"text", "messages", "prompt"};
  std::string paragraph_separator;  // .txt: "" one document a file; otherwise split on it
};

// By extension: .jsonl, .npy, anything else is text; "-" is text from stdin. In the order given, never empty.
//
//   text    a byte order mark is dropped and CRLF becomes LF, as an editor would show it
//   .jsonl  one JSON object a line, blank lines and empty texts are skipped; strings are taken as they are. A conversation is a list
//           of {"role": …, "content": …}; a message may be empty, a list not
//   .npy    an integer dtype: 1-D one document, 2-D one a row
//
// std::invalid_argument: no file, or one without any text or ids; bytes that are not UTF-8 (with offset); a line that is not a JSON
// object with one of the fields, that field a string or a conversation (with line number); a message with other keys (tool_calls,
// reasoning_content) that are neither null nor empty, or beside "tools": no chat format here says them; an id that is negative or above 2^31 (with row and position).
std::vector<Document> read_corpus(const std::vector<std::filesystem::path>& files,
                                  const CorpusOptions& options);

}  // namespace oscar
