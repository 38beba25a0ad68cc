#include "libdump/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <limits>
#include <new>

#include "formats/error.h"

namespace oscar {
namespace {

std::string message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* of) : code(of) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

struct Regex::Search::Memory {
  explicit Memory(const pcre2_code* code)
      : context(pcre2_match_context_create(nullptr)),
        data(pcre2_match_data_create_from_pattern(code, nullptr)) {
    if (!context || !data) throw std::bad_alloc();
    // A run of a million spaces is legal text, and the patterns of tokenizers backtrack linearly.
    pcre2_set_match_limit(context, std::numeric_limits<uint32_t>::max());
  }
  ~Memory() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  pcre2_match_context* context;
  pcre2_match_data* data;
};

Regex::Regex(std::string_view pattern) : pattern_(pattern) {
  int error = 0;
  size_t offset = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code) throw failure("pattern '{}': offset {}: {}", pattern, offset, message(error));
  code_ = std::make_unique<const Code>(code);
  // Where executable memory is denied this fails, and pcre2_match interprets the pattern instead.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}
Regex::~Regex() = default;

Regex::Search::Search(const Regex& regex) : memory_(std::make_unique<Memory>(regex.code_->code)) {}
Regex::Search::~Search() = default;
Regex::Search::Search(Search&&) noexcept = default;

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from, Search& search) const {
  const auto& memory = *search.memory_;
  const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, memory.data, memory.context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) throw failure("pattern '{}': {} bytes of text: {}", pattern_, text.size(), message(found));
  const auto* bounds = pcre2_get_ovector_pointer(memory.data);
  return Match{bounds[0], bounds[1]};
}

size_t Regex::next_character(std::string_view text, size_t from) {
  do ++from;
  while (from < text.size() && (text[from] & 0xc0) == 0x80);
  return from;
}

}  // namespace oscar
