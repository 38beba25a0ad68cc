#include "libdump/tokenizer/decoders.h"

#include "libdump/tokenizer/bpe.h"
#include "libdump/tokenizer/json_part.h"
#include "libdump/tokenizer/text_pattern.h"

namespace oscar {
namespace {

using Json = nlohmann::json;
using Made = std::unique_ptr<const Decoder>;
using Tokens = std::vector<Spelled>;

struct ByteLevel : Decoder {
  explicit ByteLevel(const Json&) {}
  void apply(Tokens& tokens) const override {
    for (auto& [text, added] : tokens)
      if (!added) text = bytes_of_token(text).value_or(text);
  }
};

struct Replace : Decoder {
  explicit Replace(const Json& part) : pattern(part.at("pattern")), content(part.at("content")) {}
  void apply(Tokens& tokens) const override {
    for (auto& token : tokens) token.text = pattern.replaced(token.text, content);
  }
  TextPattern pattern;
  std::string content;
};

struct ByteFallback : Decoder {
  explicit ByteFallback(const Json&) {}
  void apply(Tokens& tokens) const override {
    for (auto& [text, added] : tokens)
      if (const auto byte = added ? std::nullopt : byte_of_fallback(text))
        text.assign(1, static_cast<char>(*byte));
  }
};

struct Fuse : Decoder {
  explicit Fuse(const Json&) {}
  void apply(Tokens& tokens) const override {
    Spelled all;
    for (const auto& token : tokens) all.text += token.text;
    tokens.assign(1, std::move(all));
  }
};

struct Strip : Decoder {
  explicit Strip(const Json& part)
      : content(part.at("content")),
        start(static_cast<size_t>(whole_number(part.at("start"), "decoder Strip: start", int64_t{1} << 31))),
        stop(static_cast<size_t>(whole_number(part.at("stop"), "decoder Strip: stop", int64_t{1} << 31))) {
    if (content.empty()) throw failure("decoder Strip: an empty content");
  }
  void apply(Tokens& tokens) const override {
    for (auto& token : tokens) {
      auto& text = token.text;
      for (size_t i = 0; i < start && text.starts_with(content); ++i) text.erase(0, content.size());
      for (size_t i = 0; i < stop && text.ends_with(content); ++i) text.resize(text.size() - content.size());
    }
  }
  std::string content;
  size_t start, stop;
};

struct Metaspace : Decoder {
  explicit Metaspace(const Json& part)
      : mark(Json{{"String", part.at("replacement")}}),
        prefix(part.value("prepend_scheme", part.value("add_prefix_space", true) ? "always" : "never") !=
               "never") {}
  void apply(Tokens& tokens) const override {
    for (auto& token : tokens) token.text = mark.replaced(token.text, " ");
    if (prefix && !tokens.empty() && tokens[0].text.starts_with(' ')) tokens[0].text.erase(0, 1);
  }
  TextPattern mark;
  bool prefix;
};

struct Sequence : Decoder {
  explicit Sequence(const Json& part) {
    for (const auto& each : part.at("decoders")) parts.push_back(read_decoder(each));
  }
  void apply(Tokens& tokens) const override {
    for (const auto& part : parts) part->apply(tokens);
  }
  std::vector<Made> parts;
};

template <typename Kind>
Made make(const Json& part) {
  return std::make_unique<const Kind>(part);
}
constexpr PartKind<Decoder> kinds[] = {
    {"Sequence", make<Sequence>},         {"ByteLevel", make<ByteLevel>}, {"Replace", make<Replace>},
    {"ByteFallback", make<ByteFallback>}, {"Fuse", make<Fuse>},           {"Strip", make<Strip>},
    {"Metaspace", make<Metaspace>},
};

}  // namespace

Made read_decoder(const Json& part) {
  return read_part<Decoder>(part, kinds, "decoder");
}

}  // namespace oscar
