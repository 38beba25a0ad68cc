// What a part of tokenizer.json looks for: {"String": "…"} or {"Regex": "…"}.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "libdump/tokenizer/regex.h"

namespace oscar {

class TextPattern {
 public:
  explicit TextPattern(const nlohmann::json& pattern);
  static TextPattern oniguruma(std::string_view expression);

  // found(begin, end) for every match in turn.
  template <typename Found>
  void each(std::string_view text, const Found& found) const {
    if (regex_) {
      Regex::Search search(*regex_);
      return regex_->each(text, search, found);
    }
    for (size_t at = 0; (at = text.find(literal_, at)) != text.npos; at += literal_.size())
      found(at, at + literal_.size());
  }
  std::string replaced(std::string_view text, std::string_view by) const;

 private:
  TextPattern() = default;
  std::string literal_;
  std::unique_ptr<const Regex> regex_;  // where there is one
};

}  // namespace oscar
