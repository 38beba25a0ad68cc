// How a function that must not throw says what went wrong.
#pragma once

namespace oscar {

// what: nullptr when all is well; else a sentence, in static storage or, for messages of a driver, in a
// buffer of the calling thread that its next failure overwrites.
struct [[nodiscard]] Status {
  const char* what = nullptr;
  bool ok() const { return what == nullptr; }
};

}  // namespace oscar
