#include "formats/json_reader.h"

#include <charconv>

namespace oscar {

namespace {

constexpr int kMaxDepth = 16;

bool digit(char c) {
  return c >= '0' && c <= '9';
}
// Bytes of the UTF-8 sequence that begins `text`, 0 where it is none (RFC 3629: no surrogates, shortest
// form).
size_t sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}
// The four digits of \uXXXX, -1 where they are none.
int code_unit(std::string_view digits) {
  int value = -1;
  if (digits.size() < 4 || digits[0] == '-') return -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + 4, value, 16);
  return error == std::errc() && end == digits.data() + 4 ? value : -1;
}
bool high_surrogate(int unit) {
  return unit >= 0xd800 && unit < 0xdc00;
}
bool low_surrogate(int unit) {
  return unit >= 0xdc00 && unit < 0xe000;
}
// Bytes of the escape that begins `text` (with its backslash), 0 where it is none.
size_t escape(std::string_view text) {
  if (text.size() < 2) return 0;
  if (text[1] != 'u') return std::string_view("\"\\/bfnrt").find(text[1]) == text.npos ? 0 : 2;
  const int unit = code_unit(text.substr(2));
  if (unit < 0 || low_surrogate(unit)) return 0;
  if (!high_surrogate(unit)) return 6;
  return text.substr(6, 2) == "\\u" && low_surrogate(code_unit(text.substr(8))) ? 12 : 0;
}
void put_utf8(std::string& out, int code) {
  const auto byte = [&](int bits) { out += static_cast<char>(bits); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      byte(0xe0 | code >> 12);
    } else {
      byte(0xf0 | code >> 18);
      byte(0x80 | (code >> 12 & 0x3f));
    }
    byte(0x80 | (code >> 6 & 0x3f));
  }
  byte(0x80 | (code & 0x3f));
}
void put_escape(std::string& out, std::string_view text) {
  if (text[1] != 'u') {
    constexpr std::string_view from = "bfnrt", to = "\b\f\n\r\t";
    const auto i = from.find(text[1]);
    out += i == from.npos ? text[1] : to[i];
    return;
  }
  const int unit = code_unit(text.substr(2));
  put_utf8(out,
           text.size() == 6 ? unit : 0x10000 + ((unit - 0xd800) << 10) + code_unit(text.substr(8)) - 0xdc00);
}

}  // namespace

JsonReader::JsonReader(std::string_view text, ByteReader in, Budget& budget)
    : text_(text), in_(std::move(in)), budget_(budget) {}

char JsonReader::peek() {
  at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
  return at_ < text_.size() ? text_[at_] : '\0';
}
size_t JsonReader::offset() {
  peek();
  return in_.offset() + at_;
}
std::runtime_error JsonReader::fail(std::string_view why) {
  return fail_at(offset(), why);
}
bool JsonReader::accept(char c) {
  if (peek() != c || at_ == text_.size()) return false;
  ++at_;
  return true;
}
void JsonReader::expect(char c, std::string_view what) {
  if (accept(c)) return;
  if (at_ == text_.size()) throw fail(fmt::format("JSON: expected {}, found the end of the text", what));
  throw fail(fmt::format("JSON: expected {}, found '{}'", what, shown(text_.substr(at_, 1))));
}

std::string_view JsonReader::raw_string(std::string_view what) {
  expect('"', what);
  const size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '"') {
    const auto rest = text_.substr(at_);
    const size_t length = rest[0] == '\\'                       ? escape(rest)
                          : static_cast<uint8_t>(rest[0]) < ' ' ? 0
                                                                : sequence(rest);
    if (!length) {
      throw fail_at(in_.offset() + at_, fmt::format("JSON: byte 0x{:02x} is not part of a string in UTF-8",
                                                    static_cast<uint8_t>(rest[0])));
    }
    at_ += length;
  }
  if (at_ == text_.size()) throw fail_at(in_.offset() + begin - 1, "JSON: a string does not end");
  return text_.substr(begin, at_++ - begin);
}
std::string JsonReader::string(std::string_view what) {
  const auto raw = raw_string(what);
  budget_.take_text(raw.size(), in_, "the JSON text");
  std::string out;
  out.reserve(raw.size());  // an escape is never shorter than what it stands for
  for (size_t i = 0; i < raw.size();) {
    const size_t plain = std::min(raw.find('\\', i), raw.size()) - i;
    out += raw.substr(i, plain);
    i += plain;
    if (i == raw.size()) break;
    const auto length = escape(raw.substr(i));
    put_escape(out, raw.substr(i, length));
    i += length;
  }
  return out;
}

uint64_t JsonReader::natural(std::string_view what) {
  const auto at = offset();
  const size_t begin = at_;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  const auto after = static_cast<size_t>(end - text_.data());
  const bool more =
      after < text_.size() &&
      (digit(text_[after]) || std::string_view(".eE").find(text_[after]) != std::string_view::npos);
  if (error != std::errc() || more || (text_[begin] == '0' && after > begin + 1))
    throw fail_at(at, fmt::format("{}: expected a non-negative integer below 2^64", what));
  at_ = after;
  return value;
}

void JsonReader::skip_number() {
  const auto at = offset();
  const auto digits = [&] {
    const size_t begin = at_;
    while (at_ < text_.size() && digit(text_[at_])) ++at_;
    if (at_ == begin) throw fail_at(at, "JSON: expected a value: a number needs digits");
    return text_.substr(begin, at_ - begin);
  };
  const auto next = [&](std::string_view any) {
    const bool found = at_ < text_.size() && any.find(text_[at_]) != any.npos;
    at_ += found;
    return found;
  };
  next("-");
  if (const auto whole = digits(); whole.size() > 1 && whole[0] == '0')
    throw fail_at(at, "JSON: a number begins with 0");
  if (next(".")) digits();
  if (next("eE")) {
    next("+-");
    digits();
  }
}
void JsonReader::skip() {
  skip(0);
}
void JsonReader::skip(int depth) {
  if (depth > kMaxDepth) throw fail(fmt::format("JSON: nested deeper than {}", kMaxDepth));
  switch (peek()) {
    case '{':
      ++at_;
      if (accept('}')) return;
      do {
        raw_string("a key");
        expect(':', "':'");
        skip(depth + 1);
      } while (accept(','));
      return expect('}', "',' or '}'");
    case '[':
      return array([&] { skip(depth + 1); });
    case '"':
      raw_string("a string");
      return;
    default:
      for (const std::string_view word : {"true", "false", "null"}) {
        if (text_.substr(at_, word.size()) != word) continue;
        at_ += word.size();
        return;
      }
      return skip_number();
  }
}
void JsonReader::finish() {
  if (peek() || at_ != text_.size()) throw fail("JSON: something follows the value");
}

}  // namespace oscar
