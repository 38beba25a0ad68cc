// The regular expressions of tokenizer.json are written for Oniguruma, which reads some of what PCRE2 reads
// differently.
#pragma once
#include <string>
#include <string_view>

namespace oscar {

// The same expression for PCRE2 (UTF, UCP): \s is the White_Space property (PCRE2 adds U+180E), \w has marks
// and all connectors, \p{Han} is the script (PCRE2: its extensions), categories have the characters of
// Unicode 16 (unicode_additions.def), ^ and $ are at lines. A construct with no translation here, such as \b,
// \h or [a&&b], is std::invalid_argument with its offset.
std::string pcre2_of_oniguruma(std::string_view pattern);

}  // namespace oscar
