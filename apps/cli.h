// What the four programs share: one catch, exit codes, -q / --version, progress, interruption.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

namespace oscar::cli {

struct Common {
  bool quiet = false;
  int threads = 0;  // 0: all cores
};

// Adds -q, --threads, --version and the two examples to the end of --help.
void add_common(CLI::App& app, Common& common, const std::string& examples);

// Parses, runs, and turns what is thrown into "tool: message" on stderr and an exit code:
// 0 done, 1 found wanting, 2 the caller's fault, 3 the world's fault, 130 interrupted.
int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body);

// Ends a program that has LibTorch loaded: what is printed is written, and static destructors are not run.
// LibTorch's have been seen to go on for ever after the last line of main().
[[noreturn]] void leave(int code);

// A bar with rate and time left on a terminal, a line a step elsewhere, nothing with -q. To stderr.
class Progress {
 public:
  Progress(std::string label, std::string unit, bool quiet);
  ~Progress();
  void update(int64_t done, int64_t total, const std::string& step = "");

 private:
  struct State;
  std::unique_ptr<State> state_;
};

void note(bool quiet, const std::string& text);        // a line on stderr
void note_slower(bool quiet, const std::string& why);  // that our GPU kernels do not run; nothing for ""
void print_json(const nlohmann::ordered_json& value);  // to stdout
int threads_or_cores(int threads);
std::string human_bytes(double bytes);

}  // namespace oscar::cli
