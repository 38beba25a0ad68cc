#include "libdump/corpus.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/npy.h"
#include "libdump/tokenizer/utf8.h"

namespace oscar {
namespace {

using Documents = std::vector<Document>;
using Content = std::variant<std::string, std::vector<int32_t>, Conversation>;

void add(Documents& documents, Content content, std::string source) {
  Document document;
  static_cast<Content&>(document) = std::move(content);
  document.source = std::move(source);
  documents.push_back(std::move(document));
}

std::string read_utf8(const std::filesystem::path& path, const std::string& name) {
  std::string text = read_text(path);
  if (text.empty()) throw invalid("{}: is empty: expected text", name);
  if (const size_t at = invalid_utf8(text); at != text.npos) {
    const bool utf16 = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
    throw invalid("{}: offset {}: byte 0x{:02x} is not UTF-8{}", name, at, static_cast<uint8_t>(text[at]),
                  utf16 ? ": the file is UTF-16, convert it (iconv -f UTF-16 -t UTF-8)"
                        : ": convert the file to UTF-8");
  }
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

std::string without_crlf(std::string text) {
  size_t kept = text.find('\r');
  if (kept == text.npos) return text;
  for (size_t i = kept; i < text.size(); ++i)
    if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') text[kept++] = text[i];
  text.resize(kept);
  return text;
}

void read_plain(const std::filesystem::path& path, const std::string& name, const CorpusOptions& options,
                Documents& documents) {
  std::string text = without_crlf(read_utf8(path, name));
  const std::string& separator = options.paragraph_separator;
  if (separator.empty()) {
    if (!text.empty()) add(documents, std::move(text), name);
    return;
  }
  std::string_view rest = text;
  for (size_t paragraph = 1; !rest.empty(); ++paragraph) {
    const size_t end = std::min(rest.find(separator), rest.size());
    if (end > 0)
      add(documents, std::string(rest.substr(0, end)), fmt::format("{}: paragraph {}", name, paragraph));
    rest.remove_prefix(std::min(end + separator.size(), rest.size()));
  }
}

bool says_nothing(const nlohmann::json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

Conversation conversation_of(const nlohmann::json& messages, const nlohmann::json& line,
                             const std::string& source) {
  constexpr auto instead = "no chat format renders it: write the rendered conversation into 'text'";
  if (messages.empty()) throw invalid("{}: the conversation has no messages", source);
  if (const auto tools = line.find("tools"); tools != line.end() && !says_nothing(*tools))
    throw invalid("{}: field 'tools': {}", source, instead);
  Conversation conversation;
  for (const auto& message : messages) {
    const std::string where = fmt::format("{}: message {}", source, conversation.size() + 1);
    if (!message.is_object())
      throw invalid("{}: expected {{\"role\": …, \"content\": …}}, found {}", where, message.type_name());
    for (const auto& [key, value] : message.items())
      if (key != "role" && key != "content" && !says_nothing(value))
        throw invalid("{}: '{}': {}", where, key, instead);
    for (const char* key : {"role", "content"}) {
      const auto found = message.find(key);
      if (found == message.end() || !found->is_string())
        throw invalid("{}: '{}': expected a string, found {}", where, key,
                      found == message.end() ? "none" : found->type_name());
    }
    conversation.push_back({message["role"], message["content"]});
  }
  return conversation;
}

Content content_of_line(std::string_view line, const std::string& source, const CorpusOptions& options) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) throw invalid("{}: not JSON: expected one object a line", source);
  if (!json.is_object()) throw invalid("{}: expected a JSON object, found {}", source, json.type_name());
  for (const auto& field : options.fields) {
    const auto found = json.find(field);
    if (found == json.end()) continue;
    if (found->is_array()) return conversation_of(*found, json, source);
    if (!found->is_string())
      throw invalid("{}: field '{}': expected a string or a list of messages, found {}", source, field,
                    found->type_name());
    return found->get<std::string>();
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  throw invalid("{}: expected one of the fields {}, found {}", source, fmt::join(options.fields, ", "),
                keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", ")));
}

void read_jsonl(const std::filesystem::path& path, const std::string& name, const CorpusOptions& options,
                Documents& documents) {
  const std::string all = read_utf8(path, name);
  std::string_view rest = all;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const auto line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::string source = fmt::format("{}: line {}", name, number);
    Content content = content_of_line(line, source, options);
    if (!std::visit([](const auto& c) { return c.empty(); }, content))
      add(documents, std::move(content), std::move(source));
  }
}

void read_ids(const std::filesystem::path& path, const std::string& name, const CorpusOptions&,
              Documents& documents) {
  const Tensor tensor = read_npy(path);
  const bool integers = tensor.dtype >= DType::I64 && tensor.dtype <= DType::U8;
  if (!integers || tensor.shape.empty() || tensor.shape.size() > 2) {
    throw invalid("{}: expected token ids, integers of one or two dimensions, found {} {}", name,
                  info(tensor.dtype).name, to_string(tensor.shape));
  }
  const bool flat = tensor.shape.size() == 1;
  const auto width = static_cast<size_t>(tensor.shape.back());
  const auto ids = tensor.integers();
  for (size_t begin = 0; begin < ids.size(); begin += width) {
    std::string source = flat ? name : fmt::format("{}: row {}", name, begin / width);
    std::vector<int32_t> row(width);
    for (size_t i = 0; i < width; ++i) {
      const int64_t id = ids[begin + i];
      if (id < 0 || id > std::numeric_limits<int32_t>::max())
        throw invalid("{}: position {}: {} is not a token id", source, i, id);
      row[i] = static_cast<int32_t>(id);
    }
    add(documents, std::move(row), std::move(source));
  }
}

struct Kind {
  std::string_view extension;
  void (*read)(const std::filesystem::path&, const std::string&, const CorpusOptions&, Documents&);
};
constexpr Kind kinds[] = {{".jsonl", read_jsonl}, {".npy", read_ids}};

}  // namespace

std::vector<Document> read_corpus(const std::vector<std::filesystem::path>& files,
                                  const CorpusOptions& options) {
  if (files.empty())
    throw invalid("no text given: expected .txt, .jsonl or .npy files, or - for standard input");
  if (std::count(files.begin(), files.end(), "-") > 1)
    throw invalid("-: standard input can be read once only");
  Documents documents;
  for (const auto& path : files) {
    const std::string name = path == "-" ? "standard input" : path.string();
    std::string extension = path.extension().string();
    for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    const auto kind = std::find_if(std::begin(kinds), std::end(kinds),
                                   [&](const Kind& k) { return k.extension == extension; });
    const size_t before = documents.size();
    (kind == std::end(kinds) ? read_plain : kind->read)(path, name, options, documents);
    if (documents.size() == before) throw invalid("{}: has no text: every document in it is empty", name);
  }
  return documents;
}

}  // namespace oscar
