#include "libdump/tokenizer/normalizers.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "libdump/tokenizer/json_part.h"
#include "libdump/tokenizer/text_pattern.h"

namespace oscar {
namespace {

using Json = nlohmann::json;
using Made = std::unique_ptr<const Normalizer>;

template <int options>
struct UnicodeForm : Normalizer {
  explicit UnicodeForm(const Json&) {}
  void apply(std::string& text) const override {
    // Composed text below U+0300 (lead byte 0xcc) is composed already; compatibility begins in Latin-1.
    constexpr unsigned char first = options == UTF8PROC_COMPOSE ? 0xcc : 0x80;
    if (std::all_of(text.begin(), text.end(), [](char c) {
          const auto byte = static_cast<unsigned char>(c);
          return byte < 0x80 || (byte < first && first > 0x80);
        }))
      return;
    utf8proc_uint8_t* result = nullptr;
    const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                                   static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
    if (size < 0) throw failure("normalising {} bytes: {}", text.size(), utf8proc_errmsg(size));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
    text.assign(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
  }
};

struct Replace : Normalizer {
  explicit Replace(const Json& part) : pattern(part.at("pattern")), content(part.at("content")) {}
  void apply(std::string& text) const override { text = pattern.replaced(text, content); }
  TextPattern pattern;
  std::string content;
};

struct Prepend : Normalizer {
  explicit Prepend(const Json& part) : prefix(part.at("prepend")) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix);
  }
  std::string prefix;
};

struct Sequence : Normalizer {
  explicit Sequence(const Json& part) {
    for (const auto& each : part.at("normalizers")) parts.push_back(read_normalizer(each));
  }
  void apply(std::string& text) const override {
    for (const auto& part : parts) part->apply(text);
  }
  std::vector<Made> parts;
};

template <typename Kind>
Made make(const Json& part) {
  return std::make_unique<const Kind>(part);
}
constexpr PartKind<Normalizer> kinds[] = {
    {"Sequence", make<Sequence>},
    {"NFC", make<UnicodeForm<UTF8PROC_COMPOSE>>},
    {"NFD", make<UnicodeForm<UTF8PROC_DECOMPOSE>>},
    {"NFKC", make<UnicodeForm<UTF8PROC_COMPOSE | UTF8PROC_COMPAT>>},
    {"NFKD", make<UnicodeForm<UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT>>},
    {"Replace", make<Replace>},
    {"Prepend", make<Prepend>},
};

}  // namespace

Made read_normalizer(const Json& part) {
  return read_part<Normalizer>(part, kinds, "normalizer");
}

}  // namespace oscar
