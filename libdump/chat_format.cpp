#include "libdump/chat_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using enum SystemPlace;

// What every gpt-oss prompt begins with, but for the day it was written on.
constexpr std::string_view kHarmonySystem =
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\n\nReasoning: medium\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>";

// clang-format off
const ChatFormat kFormats[] = {
    {.name = "chatml", .summary = "Qwen, SmolLM and many others",
     .known_by = {"<|im_start|>", "<|im_end|>"}, .not_by = {"<|im_sep|>"}, .tokens = {"<|im_start|>", "<|im_end|>"},
     .bos = false, .preamble = "", .system_place = Anywhere,
     .system = {"<|im_start|>system\n", "<|im_end|>\n"}, .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"}, .last_close = "", .no_thought = "", .also_system = ""},
    {.name = "llama3", .summary = "Llama 3 to 3.3",
     .known_by = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, .not_by = {},
     .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .bos = true, .preamble = "", .system_place = Anywhere,
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", true},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", true},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", true},
     .last_close = "", .no_thought = "", .also_system = ""},
    {.name = "gemma", .summary = "Gemma 2 and 3",
     .known_by = {"<start_of_turn>", "<end_of_turn>"}, .not_by = {}, .tokens = {"<start_of_turn>", "<end_of_turn>"},
     .bos = true, .preamble = "", .system_place = FirstUser,
     .system = {"", "\n\n"}, .user = {"<start_of_turn>user\n", "<end_of_turn>\n", true},
     .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n", true}, .last_close = "", .no_thought = "", .also_system = ""},
    {.name = "harmony", .summary = "gpt-oss; the system message becomes the developer's",
     .known_by = {"<|start|>", "<|channel|>", "<|message|>"}, .not_by = {},
     .tokens = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"},
     .bos = false, .preamble = kHarmonySystem, .system_place = First,
     .system = {"<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"},
     .user = {"<|start|>user<|message|>", "<|end|>"},
     .assistant = {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"},
     .last_close = "<|return|>", .no_thought = "", .also_system = "developer"},
    {.name = "glm", .summary = "GLM-4.5 and 4.6",
     .known_by = {"[gMASK]<sop>", "<|user|>", "<|assistant|>", "\\n<think></think>"}, .not_by = {},
     .tokens = {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"},
     .bos = false, .preamble = "[gMASK]<sop>", .system_place = Anywhere,
     .system = {"<|system|>\n", ""}, .user = {"<|user|>\n", ""}, .assistant = {"<|assistant|>\n", "", true},
     .last_close = "", .no_thought = "<think></think>\n", .also_system = ""},
    {.name = "glm4", .summary = "GLM-4, without thoughts",
     .known_by = {"[gMASK]<sop>", "<|user|>", "<|assistant|>"}, .not_by = {"<think>", "</think>"},
     .tokens = {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"},
     .bos = false, .preamble = "[gMASK]<sop>", .system_place = First,
     .system = {"<|system|>\n", ""}, .user = {"<|user|>\n", ""}, .assistant = {"<|assistant|>\n", ""},
     .last_close = "", .no_thought = "", .also_system = ""},
    {.name = "minimax", .summary = "MiniMax-M2",
     .known_by = {"]~!b[", "]~b]", "[e~["}, .not_by = {}, .tokens = {"]~!b[", "]~b]", "[e~["},
     .bos = false, .preamble = "]~!b[", .system_place = First,
     .system = {"]~b]system\n", "[e~[\n"}, .user = {"]~b]user\n", "[e~[\n"}, .assistant = {"]~b]ai\n", "[e~[\n"},
     .last_close = "", .no_thought = "", .also_system = ""},
    {.name = "deepseek", .summary = "DeepSeek-V3, R1 and what was distilled from it",
     .known_by = {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"}, .not_by = {"<｜Assistant｜></think>"},
     .tokens = {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .bos = true, .preamble = "", .system_place = First,
     .system = {"", ""}, .user = {"<｜User｜>", ""}, .assistant = {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .last_close = "", .no_thought = "", .also_system = ""},
    {.name = "deepseek-v3.1", .summary = "DeepSeek-V3.1, whose answers begin with </think>",
     .known_by = {"<｜User｜>", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>"}, .not_by = {},
     .tokens = {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .bos = true, .preamble = "", .system_place = First,
     .system = {"", ""}, .user = {"<｜User｜>", ""}, .assistant = {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .last_close = "", .no_thought = "</think>", .also_system = ""},
};
// clang-format on

std::string names() {
  std::string all;
  for (const ChatFormat& format : kFormats) all += (all.empty() ? "" : ", ") + std::string(format.name);
  return all;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(space);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(space) + 1 - begin);
}

struct Rendering {
  const ChatFormat& format;
  std::vector<ChatPiece> pieces;

  void text(std::string_view more) {
    if (more.empty()) return;
    if (pieces.empty() || pieces.back().token) pieces.push_back({"", false});
    pieces.back().text += more;
  }
  void markup(std::string_view more) {
    for (size_t at = 0; at < more.size();) {
      const auto token = std::ranges::find_if(
          format.tokens, [&](std::string_view each) { return more.substr(at).starts_with(each); });
      if (token == format.tokens.end()) {
        text(more.substr(at++, 1));
      } else {
        pieces.push_back({std::string(*token), true});
        at += token->size();
      }
    }
  }
};

// Of tokenizer_config.json: a text, or a list of {"name", "template"}.
std::string template_of(const nlohmann::json& value, const std::string& where) {
  if (value.is_string()) return value;
  if (value.is_array()) {
    for (const auto& each : value)
      if (each.is_object() && each.value("name", "") == "default") return each.value("template", "");
  }
  throw failure("{}: chat_template: expected a text, or a list with one named 'default', found {}", where,
                value.type_name());
}

}  // namespace

std::span<const ChatFormat> chat_formats() {
  return kFormats;
}

const ChatFormat& find_chat_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &ChatFormat::name);
  if (found == std::end(kFormats))
    throw invalid("--chat-format: expected one of {}, found '{}'", names(), name);
  return *found;
}

const ChatFormat& recognise_chat_format(std::string_view chat_template, const std::string& where) {
  const auto stands = [&](std::string_view text) { return chat_template.find(text) != chat_template.npos; };
  for (const ChatFormat& format : kFormats)
    if (std::ranges::all_of(format.known_by, stands) && std::ranges::none_of(format.not_by, stands))
      return format;
  throw invalid(
      "{}: {}: render the conversations yourself and give them as 'text', or name the format (--chat-format: "
      "{})",
      where,
      chat_template.empty() ? "the text has conversations, the checkpoint no chat template"
                            : "its chat template is of no known format",
      names());
}

std::string read_chat_template(const fs::path& checkpoint) {
  if (!fs::is_directory(checkpoint))
    return GgufFile::open(checkpoint).text("tokenizer.chat_template").value_or("");
  if (const auto file = checkpoint / "chat_template.jinja"; fs::exists(file)) return read_text(file);
  const auto file = checkpoint / "tokenizer_config.json";
  if (!fs::exists(file)) return "";
  try {
    const auto config = nlohmann::json::parse(read_text(file));
    const auto found = config.find("chat_template");
    return found == config.end() || found->is_null() ? "" : template_of(*found, file.string());
  } catch (const nlohmann::json::exception& e) {
    throw failure("{}: {}", file.string(), e.what());
  }
}

std::vector<ChatPiece> render(const ChatFormat& format, const Conversation& messages,
                              const std::string& source) {
  if (messages.empty()) throw invalid("{}: the conversation has no messages", source);
  Rendering out{format, {}};
  out.markup(format.preamble);
  std::string before;  // the content of the user's message that comes next
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    const bool last = i + 1 == messages.size();
    const bool system = role == "system" || (!format.also_system.empty() && role == format.also_system);
    const bool user = role == "user", assistant = role == "assistant";
    if (!system && !user && !assistant)
      throw invalid(
          "{}: message {}: role '{}' has no place in the chat format {}: expected system, user{}{} or "
          "assistant",
          source, i + 1, role, format.name, format.also_system.empty() ? "" : ", ", format.also_system);
    if (system && i > 0 && format.system_place != Anywhere)
      throw invalid("{}: message {}: in the chat format {} a system message is the first", source, i + 1,
                    format.name);
    const ChatTurn& turn = system ? format.system : user ? format.user : format.assistant;
    const std::string_view said = turn.trim ? trimmed(content) : std::string_view(content);
    if (system && format.system_place == FirstUser) {
      if (last || messages[1].role != "user")
        throw invalid(
            "{}: message 1: in the chat format {} a user's message follows the system message, found {}",
            source, format.name, last ? "none" : "role '" + messages[1].role + "'");
      before = fmt::format("{}{}{}", turn.open, said, turn.close);
      continue;
    }
    out.markup(turn.open);
    out.text(std::exchange(before, {}));
    if (assistant && !said.starts_with("<think>"))
      out.markup(said.empty() ? trimmed(format.no_thought) : format.no_thought);
    out.text(said);
    out.markup(assistant && last && !format.last_close.empty() ? format.last_close : turn.close);
  }
  return std::move(out.pieces);
}

ChatEncoder::ChatEncoder(const ChatFormat& format, const Tokenizer& tokenizer, bool bos)
    : format_(format), tokenizer_(tokenizer), bos_(bos && format.bos) {
  if (bos_ && tokenizer.bos() < 0) {
    throw invalid(
        "chat format {}: conversations begin with a BOS token, the tokenizer has none: expected --bos none, "
        "or another --chat-format",
        format.name);
  }
  for (const auto view : format.tokens) {
    const std::string token(view);
    const auto ids = tokenizer.encode(token);
    if (ids.size() != 1) {
      throw invalid(
          "chat format {}: expected '{}' to be one token, found {}: the tokenizer is of a model with another "
          "format: choose it (--chat-format), or give the conversations as text",
          format.name, token, ids.size());
    }
    // Pieces are encoded on their own; a token that takes white space along, or after which a tokenizer goes on otherwise than it
    // begins, would get other ids than in the whole text.
    auto apart = tokenizer.encode("\n", false);
    apart.push_back(ids[0]);
    for (const int32_t id : tokenizer.encode("\nx", false)) apart.push_back(id);
    if (tokenizer.encode("\n" + token + "\nx") != apart) {
      throw invalid(
          "chat format {}: the tokenizer reads the text beside '{}' otherwise than alone, which is not "
          "supported: give the conversations as text",
          format.name, token);
    }
    ids_.emplace(token, ids[0]);
    if (tokenizer.encode(token, false) == ids) always_.push_back(view);
  }
}

std::vector<int32_t> ChatEncoder::encode(const Conversation& messages, const std::string& source) const {
  std::vector<int32_t> ids;
  if (bos_) ids.push_back(tokenizer_.bos());
  for (const auto& [text, token] : render(format_, messages, source)) {
    if (token) {
      ids.push_back(ids_.at(text));
      continue;
    }
    for (const auto special : always_) {
      if (text.find(special) != text.npos) {
        throw invalid(
            "{}: a message has '{}' in its content, which this tokenizer takes for the token of the chat "
            "format "
            "wherever it stands: take it out",
            source, special);
      }
    }
    const auto more = tokenizer_.encode(text, false);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

}  // namespace oscar
