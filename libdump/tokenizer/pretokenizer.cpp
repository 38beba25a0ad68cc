#include "libdump/tokenizer/pretokenizer.h"

#include <algorithm>

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

}  // namespace

Pretokenizer::Pretokenizer(std::string_view name) {
  for (const Entry& entry : table()) {
    const auto names = words_of(entry.names);
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    name_ = names.front();
    whole_words_ = entry.whole_words;
    adds_bos_ = entry.adds_bos;
    for (const auto pattern : entry.patterns) patterns_.push_back(std::make_unique<const Regex>(pattern));
    return;
  }
  throw invalid(
      "tokenizer.ggml.pre: unknown pre-tokenizer '{}'; known: {}. Give token ids (.npy) instead of text",
      name, fmt::join(pretokenizer_names(), ", "));
}

void Pretokenizer::split(std::string_view text, const Word& word) const {
  // One search for each pattern, as an outer match is still read while inner ones are made.
  std::vector<Regex::Search> searches;
  for (const auto& pattern : patterns_) searches.emplace_back(*pattern);
  split(text, 0, searches, word);
}

// Every piece is a subject of its own, so that "end of text" in a pattern is the end of the piece.
void Pretokenizer::split(std::string_view text, size_t level, std::vector<Regex::Search>& searches,
                         const Word& word) const {
  if (text.empty()) return;
  if (level == patterns_.size()) return word(text);
  size_t done = 0;
  patterns_[level]->each(text, searches[level], [&](size_t begin, size_t end) {
    split(text.substr(done, begin - done), level + 1, searches, word);
    split(text.substr(begin, end - begin), level + 1, searches, word);
    done = end;
  });
  split(text.substr(done), level + 1, searches, word);
}

std::vector<std::string> pretokenizer_names() {
  std::vector<std::string> all;
  for (const Entry& entry : table())
    for (auto& name : words_of(entry.names)) all.push_back(std::move(name));
  return all;
}

}  // namespace oscar
