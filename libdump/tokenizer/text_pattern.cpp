#include "libdump/tokenizer/text_pattern.h"

#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "libdump/tokenizer/oniguruma.h"

namespace oscar {

TextPattern::TextPattern(const nlohmann::json& pattern) {
  if (pattern.contains("Regex")) {
    *this = oniguruma(pattern.at("Regex").get<std::string>());
  } else {
    literal_ = pattern.at("String").get<std::string>();
    if (literal_.empty()) throw failure("an empty pattern");
  }
}

TextPattern TextPattern::oniguruma(std::string_view expression) {
  TextPattern made;
  made.regex_ = std::make_unique<const Regex>(pcre2_of_oniguruma(expression));
  return made;
}

std::string TextPattern::replaced(std::string_view text, std::string_view by) const {
  std::string result;
  size_t done = 0;
  each(text, [&](size_t begin, size_t end) {
    result.append(text.substr(done, begin - done)).append(by);
    done = end;
  });
  return result.append(text.substr(done));
}

}  // namespace oscar
