// Cuts text into the words inside which byte pairs are merged: a table of patterns by the name a model file
// gives.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libdump/tokenizer/regex.h"

namespace oscar {

class Pretokenizer {
 public:
  // By a name of pretokenizers.def; any other is std::invalid_argument with the known names.
  explicit Pretokenizer(std::string_view name);
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  // Words in order; joined they are the text. `text` must be valid UTF-8 (unchecked). Thread-safe.
  using Word = std::function<void(std::string_view)>;
  void split(std::string_view text, const Word& word) const;

  const std::string& name() const { return name_; }  // the first of its names, whichever was asked for
  bool whole_words() const { return whole_words_; }
  bool adds_bos() const { return adds_bos_; }

 private:
  void split(std::string_view text, size_t level, std::vector<Regex::Search>& searches,
             const Word& word) const;

  std::string name_;
  bool whole_words_ = false, adds_bos_ = false;
  std::vector<std::unique_ptr<const Regex>> patterns_;
};

std::vector<std::string> pretokenizer_names();  // every name of the table

}  // namespace oscar
