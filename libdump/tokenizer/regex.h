// Regular expressions over UTF-8: PCRE2 with Unicode properties, compiled to machine code where that is
// allowed.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace oscar {

class Regex {
 public:
  // `pattern` as PCRE2 reads it; what it cannot read is std::runtime_error with the offset.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Match {
    size_t begin, end;
  };
  class Search;  // what a search writes to: one for each thread and expression
  // The leftmost match that begins at `from` or later. `text` must be valid UTF-8 (unchecked).
  std::optional<Match> find(std::string_view text, size_t from, Search& search) const;

  // found(begin, end) for every match in turn, none overlapping, none empty just after another.
  template <typename Found>
  void each(std::string_view text, Search& search, const Found& found) const {
    size_t from = 0, last = std::string_view::npos;
    while (from <= text.size()) {
      const auto match = find(text, from, search);
      if (!match) return;
      if (match->begin == match->end && match->end == last) {
        from = next_character(text, from);
        continue;
      }
      from = last = match->end;
      found(match->begin, match->end);
    }
  }

 private:
  static size_t next_character(std::string_view text, size_t from);
  struct Code;
  std::unique_ptr<const Code> code_;
  std::string pattern_;  // for messages
};

class Regex::Search {
 public:
  explicit Search(const Regex& regex);
  ~Search();
  Search(Search&& from) noexcept;
  Search& operator=(Search&&) = delete;

 private:
  friend class Regex;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace oscar
