// Spoiling files: what the tests of every parser share.
#pragma once
#include <functional>
#include <string>

#include "formats/dtype.h"
#include "tests/formats/mutant.h"
#include "tests/support/support.h"

namespace oscar::test {

// The message with which `read` refuses its input: std::runtime_error and nothing else ("" and a failure
// otherwise).
inline std::string refusal(const std::function<void()>& read) {
  try {
    read();
    ADD_FAILURE() << "was accepted";
  } catch (const std::runtime_error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected std::runtime_error, found " << typeid(error).name() << ": " << error.what();
  }
  return "";
}
// The same for the caller's fault.
inline std::string complaint(const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "was accepted";
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected std::invalid_argument, found " << typeid(error).name() << ": " << error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

// Functions rather than macros full of assertions: a test of fifty lies compiles in seconds that way.
inline void expect_message(const char* file, int line, const std::string& message, const std::string& part) {
  if (!contains(message, part)) {
    ADD_FAILURE_AT(file, line) << "expected a message with '" << part << "', found '" << message << "'";
  }
}
inline void expect_refused(const char* file, int line, const std::function<void()>& read,
                           const std::string& part) {
  expect_message(file, line, refusal(read), part);
}
inline void expect_complaint(const char* file, int line, const std::function<void()>& call,
                             const std::string& part) {
  expect_message(file, line, complaint(call), part);
}
#define EXPECT_REFUSED(expression, part) \
  ::oscar::test::expect_refused(         \
      __FILE__, __LINE__, [&] { (void)(expression); }, part)
#define EXPECT_COMPLAINT(expression, part) \
  ::oscar::test::expect_complaint(         \
      __FILE__, __LINE__, [&] { (void)(expression); }, part)

// Reads mutants of a file until `count` are done. A parser may accept one or refuse it with
// std::runtime_error.
inline void survive_mutants(const std::string& good, const std::function<void(const fs::path&)>& read,
                            int count = 2000) {
  TempDir folder;
  const auto path = folder / "mutant";
  std::mt19937_64 random(7);
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    fs::remove(
        path);  // file systems flush a file that is truncated and written again, which takes milliseconds
    write(path, mutant(good, random));
    try {
      read(path);
    } catch (const std::runtime_error&) {
      ++refused;
    } catch (const std::exception& error) {
      fs::copy_file(path, fs::temp_directory_path() / "oscar-mutant", fs::copy_options::overwrite_existing);
      FAIL() << "mutant " << i << ": " << typeid(error).name() << ": " << error.what();
    }
  }
  EXPECT_GT(refused, count / 10) << "the mutations hit nothing that matters";
}

// Every proper prefix of the file is refused.
inline void refuse_prefixes(const std::string& good, const std::function<void(const fs::path&)>& read) {
  TempDir folder;
  for (size_t n = 0; n < good.size(); ++n) {
    fs::remove(folder / "prefix");
    write(folder / "prefix", std::string_view(good).substr(0, n));
    EXPECT_FALSE(refusal([&] { read(folder / "prefix"); }).empty())
        << "prefix of " << n << " bytes of " << good.size();
  }
}

}  // namespace oscar::test
