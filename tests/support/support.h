// What tests share: data on disk, temporary folders, and skipping with a reason.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>

namespace oscar::test {

namespace fs = std::filesystem;

// A folder that is removed again.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

fs::path golden(const std::string& name);   // tests/golden/<name>; fails the test when it is not there
fs::path binary(const std::string& name);   // of this build

// Files that are not part of the project: empty when absent. Use the macros, which skip with a clear message.
fs::path test_data(const std::string& name);   // $OSCAR_TEST_DATA/<name>
fs::path test_model();                         // $OSCAR_TEST_MODEL, or .deps/models/SmolLM2-135M-Instruct.Q4_1.gguf

std::string read(const fs::path& path);
void write(const fs::path& path, std::string_view text);

// Deterministic normal numbers.
std::vector<float> normal(size_t count, uint64_t seed, float sigma = 1);
double relative_error(std::span<const float> a, std::span<const float> b);  // ||a - b|| / ||b||
double relative_error(std::span<const double> a, std::span<const double> b);

struct Outcome {
  int code;          // exit code; 128 + signal when killed
  std::string out, err;
};
// Runs a program with arguments; `input` goes to its stdin. Environment entries "NAME=value" are added.
Outcome run(const std::vector<std::string>& command, const std::string& input = "", const std::vector<std::string>& environment = {});
std::ostream& operator<<(std::ostream& out, const Outcome& outcome);

}  // namespace oscar::test

#define OSCAR_NEED_DATA(variable, name)                                                     \
  const auto variable = oscar::test::test_data(name);                                       \
  if (variable.empty()) GTEST_SKIP() << "needs " << (name) << ": set OSCAR_TEST_DATA to a folder that has it"
#define OSCAR_NEED_MODEL(variable)                                                          \
  const auto variable = oscar::test::test_model();                                          \
  if (variable.empty())                                                                     \
  GTEST_SKIP() << "needs SmolLM2-135M-Instruct: tests/run.sh fetches it, or set OSCAR_TEST_MODEL to the .gguf"
