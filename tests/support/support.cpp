#include "tests/support/support.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

namespace oscar::test {

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "oscar-test-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp: " + pattern);
  path_ = pattern;
}
TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path golden(const std::string& name) {
  const auto path = fs::path(OSCAR_SOURCE_DIR) / "tests/golden" / name;
  EXPECT_TRUE(fs::exists(path)) << path << " is missing: tests/golden/README.md says how it is made";
  return path;
}
fs::path binary(const std::string& name) { return fs::path(OSCAR_BINARY_DIR) / "bin" / name; }

fs::path test_data(const std::string& name) {
  const char* root = std::getenv("OSCAR_TEST_DATA");
  if (!root || !*root) return {};
  const auto path = fs::path(root) / name;
  return fs::exists(path) ? path : fs::path{};
}
fs::path test_model() {
  if (const char* path = std::getenv("OSCAR_TEST_MODEL"); path && *path) return fs::exists(path) ? path : fs::path{};
  const auto path = fs::path(OSCAR_SOURCE_DIR) / ".deps/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  return fs::exists(path) ? path : fs::path{};
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  ASSERT_TRUE(out) << path;
}

std::vector<float> normal(size_t count, uint64_t seed, float sigma) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> distribution(0, sigma);
  std::vector<float> values(count);
  for (auto& value : values) value = distribution(engine);
  return values;
}

template <typename T>
static double relative(std::span<const T> a, std::span<const T> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    norm += double(b[i]) * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}
double relative_error(std::span<const float> a, std::span<const float> b) { return relative(a, b); }
double relative_error(std::span<const double> a, std::span<const double> b) { return relative(a, b); }

Outcome run(const std::vector<std::string>& command, const std::string& input, const std::vector<std::string>& environment) {
  TempDir scratch;
  write(scratch / "in", input);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(open((scratch / "in").c_str(), O_RDONLY), 0);
    dup2(open((scratch / "out").c_str(), O_WRONLY | O_CREAT, 0600), 1);
    dup2(open((scratch / "err").c_str(), O_WRONLY | O_CREAT, 0600), 2);
    for (const auto& entry : environment) {
      const auto equals = entry.find('=');
      setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
    std::vector<char*> argv;
    for (const auto& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, read(scratch / "out"), read(scratch / "err")};
}

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << "exit code " << outcome.code << "\n--- stdout\n" << outcome.out << "\n--- stderr\n" << outcome.err;
}

}  // namespace oscar::test
