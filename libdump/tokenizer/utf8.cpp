#include "libdump/tokenizer/utf8.h"

#include <utf8proc.h>

#include <cstring>

namespace oscar {
namespace {

const utf8proc_uint8_t* at(std::string_view text, size_t offset) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + offset;
}

}  // namespace

size_t invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight;
    if (i + 8 <= text.size() &&
        (std::memcpy(&eight, text.data() + i, 8), (eight & 0x8080808080808080u) == 0)) {
      i += 8;
      continue;
    }
    utf8proc_int32_t code_point;
    const auto n = utf8proc_iterate(at(text, i), static_cast<utf8proc_ssize_t>(text.size() - i), &code_point);
    if (n <= 0) return i;
    i += static_cast<size_t>(n);
  }
  return std::string_view::npos;
}

uint32_t next_code_point(std::string_view text, size_t& offset) {
  utf8proc_int32_t code_point;
  const auto n =
      utf8proc_iterate(at(text, offset), static_cast<utf8proc_ssize_t>(text.size() - offset), &code_point);
  offset += n > 0 ? static_cast<size_t>(n) : 1;
  return n > 0 ? static_cast<uint32_t>(code_point) : 0xfffd;
}

std::string to_utf8(uint32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(n)};
}

bool is_white_space(uint32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= '\t' && code_point <= '\r');
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return code_point == 0x85 || (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

bool is_word(uint32_t code_point) {
  const auto within = [&](uint32_t first, uint32_t last) {
    return first <= code_point && code_point <= last;
  };
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || within(0x200c, 0x200d) || within(0x24b6, 0x24e9) ||
         within(0x1f130, 0x1f149) || within(0x1f150, 0x1f169) || within(0x1f170, 0x1f189);
}

}  // namespace oscar
