// UTF-8, checked: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// Offset of the first byte that does not belong to a whole, valid character; npos when the text is valid.
size_t invalid_utf8(std::string_view text);
// The character at `offset`, which is moved past it. The text must be valid.
uint32_t next_code_point(std::string_view text, size_t& offset);
std::string to_utf8(uint32_t code_point);
bool is_white_space(uint32_t code_point);  // the White_Space property
bool is_word(uint32_t code_point);  // letters, marks, digits, connectors, joiners: \w of Unicode's UTS 18

}  // namespace oscar
