// JSON as the headers of checkpoints need it: read in place, value by value, and nothing kept that is not
// asked for. Strict (RFC 8259, UTF-8); faults carry their offset in the file.
#pragma once
#include "formats/budget.h"

namespace oscar {

class JsonReader {
 public:
  // `text` begins where `in` stands. Strings that are returned take from the budget.
  JsonReader(std::string_view text, ByteReader in, Budget& budget);

  size_t offset();  // in the file, of the next value
  char peek();      // its first byte, 0 at the end of the text
  // Calls member(key, offset of the key), which reads the value, for every member; repeated keys are not
  // noticed.
  template <typename Member>
  void object(Member member) {
    expect('{', "an object");
    if (accept('}')) return;
    do {
      const auto at = offset();
      auto key = string("a key");
      expect(':', "':'");
      member(std::move(key), at);
    } while (accept(','));
    expect('}', "',' or '}'");
  }
  template <typename Element>
  void array(Element element) {  // element() reads it
    expect('[', "an array");
    if (accept(']')) return;
    do element();
    while (accept(','));
    expect(']', "',' or ']'");
  }
  std::string string(std::string_view what);
  uint64_t natural(std::string_view what);  // a non-negative integer below 2^64
  void skip();                              // any value; deeper than 16 is refused
  void finish();                            // nothing but space follows

  std::runtime_error fail(std::string_view why);  // at the next value
  std::runtime_error fail_at(size_t offset, std::string_view why) const { return in_.fail_at(offset, why); }

 private:
  bool accept(char c);
  void expect(char c, std::string_view what);
  std::string_view raw_string(std::string_view what);  // between the quotes, checked
  void skip(int depth);
  void skip_number();

  std::string_view text_;
  ByteReader in_;
  Budget& budget_;
  size_t at_ = 0;
};

}  // namespace oscar
