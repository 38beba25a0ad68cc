#include "libdump/tokenizer/oniguruma.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "formats/error.h"

namespace oscar {
namespace {

struct Range {
  uint32_t first, last;
  std::string_view category;
};
constexpr Range additions[] = {
#define ADDED(first, last, category) {first, last, category},
#include "libdump/tokenizer/unicode_additions.def"
};
constexpr std::string_view categories[] = {"C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo",
                                           "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No",
                                           "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc",
                                           "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", "Any"};

// The members of a class that stand for one property.
std::string category(std::string_view name) {
  std::string members = fmt::format("\\p{{{}}}", name);
  for (const Range& range : additions) {
    if (range.category.starts_with(name))
      members += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
  }
  return members;
}

const std::string white_space = "\\t-\\r\\x{85}\\p{Z}";

std::string members_of(char escape) {
  if (escape == 's') return white_space;
  if (escape == 'd') return category("Nd");
  // Oniguruma's words have the letters in circles and, by an oddity of it, the fractions and powers of
  // Latin-1.
  return category("L") + category("M") + category("Nd") + category("Nl") + category("Pc") +
         "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
         "\\x{1f170}-\\x{1f189}";
}

bool one_of(char c, std::string_view set) {
  return set.find(c) != set.npos;
}
bool letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern) {}
  std::string run() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\')
        escape();
      else if (in_[at_] == '[')
        bracket();
      else if (in_[at_] == '(')
        group();
      else if (in_[at_] == '{')
        interval();
      else
        out_ += in_[at_++];
    }
    return "(?m)" + out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw invalid("regular expression '{}': offset {}: {} is not supported", in_, at_, what);
  }
  char peek(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void set(const std::string& members, bool negated) {
    if (inside_ && negated) refuse("a negated set within a class");
    out_ += inside_ ? members : fmt::format("[{}{}]", negated ? "^" : "", members);
  }

  void escape() {
    const char c = peek(1);
    if (c == '\0') refuse("a backslash at the end");
    if (one_of(c, "sdwSDW")) {
      set(members_of(c | 0x20), c < 'a');
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      property(c == 'P');
    } else if (c == 'u') {
      const auto digits = in_.substr(std::min(at_ + 2, in_.size()), 4);
      if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
        refuse("\\u without four digits");
      out_ += fmt::format("\\x{{{}}}", digits);
      at_ += 6;
    } else if (c == 'v') {  // PCRE2: any vertical space
      out_ += "\\x0b";
      at_ += 2;
    } else if (!letter_or_digit(c) || one_of(c, "nrtfaex") || (!inside_ && one_of(c, "AzZ"))) {
      out_ += in_.substr(at_, 2);
      at_ += 2;
    } else {
      refuse(fmt::format("\\{}", c));
    }
  }

  void property(bool negated) {
    const size_t end = in_.find('}', at_);
    if (peek(2) != '{' || end == in_.npos) refuse("\\p without braces");
    auto name = in_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool known = std::find(std::begin(categories), std::end(categories), name) != std::end(categories);
    set(known ? category(name) : fmt::format("\\p{{sc:{}}}", name), negated);
    at_ = end + 1;
  }

  void bracket() {
    inside_ = true;
    out_ += in_[at_++];
    if (peek(0) == '^') out_ += in_[at_++];
    if (peek(0) == ']') refuse("an empty class");
    while (peek(0) != ']') {
      if (at_ >= in_.size()) refuse("a class without an end");
      if (peek(0) == '[') refuse("a class within a class");
      if (peek(0) == '&' && peek(1) == '&') refuse("&& of classes");
      if (peek(0) == '\\')
        escape();
      else
        out_ += in_[at_++];
    }
    out_ += in_[at_++];
    inside_ = false;
  }

  // (…), (?:…), (?i:…), (?=…), (?!…), (?<=…), (?<!…), (?>…) are alike; so is (?i) to the end of its group.
  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) == '?') {
      const char c = peek(2);
      const bool same =
          one_of(c, ":=!>") || (c == '<' && one_of(peek(3), "=!")) || (c == 'i' && one_of(peek(3), ":)"));
      if (!same) refuse(fmt::format("(?{}", c));
    }
    out_ += in_[at_++];
  }

  // {n,m}+ is a repeated interval to Oniguruma, and a possessive one to PCRE2.
  void interval() {
    const size_t end = in_.find_first_not_of("0123456789,", at_ + 1);
    if (end == in_.npos || in_[end] != '}' || end == at_ + 1) refuse("a brace that is no interval");
    const auto bounds = in_.substr(at_ + 1, end - at_ - 1);
    out_ += fmt::format("{{{}{}}}", bounds.starts_with(',') ? "0" : "", bounds);
    at_ = end + 1;
    if (peek(0) == '+') refuse("an interval that is repeated");
  }

  std::string_view in_;
  size_t at_ = 0;
  bool inside_ = false;
  std::string out_;
};

}  // namespace

std::string pcre2_of_oniguruma(std::string_view pattern) {
  return Translation(pattern).run();
}

}  // namespace oscar
