#include "libdump/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "formats/error.h"

namespace oscar {
namespace {

struct Entry {
  std::string_view names;
  bool whole_words, adds_bos;
  std::vector<std::string_view> patterns;
};

const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
#define PRETOKENIZER(names, whole_words, adds_bos, ...) {names, whole_words, adds_bos, {__VA_ARGS__}},
#include "libdump/tokenizer/pretokenizers.def"
  };
  return entries;
}

std::vector<std::string> words_of(std::string_view names) {
  std::vector<std::string> words;
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    words.emplace_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return words;
}

std::string message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Pretokenizer::Pattern {
  explicit Pattern(std::string_view text) {
    int error = 0;
    size_t offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF | PCRE2_UCP,
                         &error, &offset, nullptr);
    if (!code) throw failure("pattern '{}': offset {}: {}", text, offset, message(error));
    // Where executable memory is denied this fails, and pcre2_match interprets the pattern instead.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  ~Pattern() { pcre2_code_free(code); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  pcre2_code* code;
};

// What a match writes to; one for each pattern, as an outer match is still read while inner ones are made.
struct Pretokenizer::Matches {
  explicit Matches(const Pretokenizer& of) : context(pcre2_match_context_create(nullptr)) {
    if (!context) throw std::bad_alloc();
    // A run of a million spaces is legal text; the patterns are ours and backtrack linearly.
    pcre2_set_match_limit(context, std::numeric_limits<uint32_t>::max());
    for (const auto& pattern : of.patterns_) {
      data.push_back(pcre2_match_data_create_from_pattern(pattern->code, nullptr));
      if (!data.back()) throw std::bad_alloc();
    }
  }
  ~Matches() {
    for (auto* d : data) pcre2_match_data_free(d);
    pcre2_match_context_free(context);
  }
  Matches(const Matches&) = delete;
  Matches& operator=(const Matches&) = delete;

  pcre2_match_context* context;
  std::vector<pcre2_match_data*> data;
};

Pretokenizer::Pretokenizer(std::string_view name) {
  for (const Entry& entry : table()) {
    const auto names = words_of(entry.names);
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    name_ = names.front();
    whole_words_ = entry.whole_words;
    adds_bos_ = entry.adds_bos;
    for (const auto pattern : entry.patterns) patterns_.push_back(std::make_unique<const Pattern>(pattern));
    return;
  }
  throw invalid(
      "tokenizer.ggml.pre: unknown pre-tokenizer '{}'; known: {}. Give token ids (.npy) instead of text",
      name, fmt::join(pretokenizer_names(), ", "));
}

Pretokenizer::~Pretokenizer() = default;

void Pretokenizer::split(std::string_view text, const Word& word) const {
  Matches matches(*this);
  split(text, 0, matches, word);
}

// Every piece is a subject of its own, so that "end of text" in a pattern is the end of the piece.
void Pretokenizer::split(std::string_view text, size_t level, Matches& matches, const Word& word) const {
  if (text.empty()) return;
  if (level == patterns_.size()) return word(text);
  size_t done = 0;
  while (done < text.size()) {
    const int found =
        pcre2_match(patterns_[level]->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, matches.data[level], matches.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw failure("pre-tokenizer {}: {} bytes of text: {}", name_, text.size(), message(found));
    const auto* bounds = pcre2_get_ovector_pointer(matches.data[level]);
    const size_t begin = bounds[0], end = bounds[1];
    split(text.substr(done, begin - done), level + 1, matches, word);
    split(text.substr(begin, end - begin), level + 1, matches, word);
    done = end;
  }
  split(text.substr(done), level + 1, matches, word);
}

std::vector<std::string> pretokenizer_names() {
  std::vector<std::string> all;
  for (const Entry& entry : table())
    for (auto& name : words_of(entry.names)) all.push_back(std::move(name));
  return all;
}

}  // namespace oscar
