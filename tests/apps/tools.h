// A toy model, a text and the four programs, for the tests that run binaries.
#pragma once
#include "tests/support/support.h"
#include "tests/support/toy_model.h"

namespace oscar::test {

using Arguments = std::vector<std::string>;

// Small enough for milliseconds, long enough for 4 D tokens a head and a history beyond the windows.
inline const Arguments kSmall{"--seq-len", "256", "--sink", "8", "--recent", "32", "--threads", "2"};

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A command with other values of options that it has, or with more options: "--name value", a flag alone.
inline Arguments with(Arguments command, const Arguments& options) {
  for (size_t i = 0; i < options.size(); ++i) {
    const auto at = options[i].starts_with("--") ? std::find(command.begin(), command.end(), options[i]) : command.end();
    if (at == command.end()) command.push_back(options[i]);
    else *(at + 1) = options[++i];
  }
  return command;
}

// A folder with model.gguf and text.txt.
class Bench {
 public:
  explicit Bench(const ToyOptions& options = {}, size_t text_bytes = 6000) {
    write_gguf(model(), toy_model(options));
    write(text(), toy_text(text_bytes));
  }
  fs::path operator/(const std::string& name) const { return folder_ / name; }
  std::string model() const { return (folder_ / "model.gguf").string(); }
  std::string text() const { return (folder_ / "text.txt").string(); }
  std::string stats() const { return (folder_ / "stats.h5").string(); }
  std::string rotations() const { return (folder_ / "rotations").string(); }
  std::string clip() const { return (folder_ / "clip.json").string(); }
  const fs::path& path() const { return folder_.path(); }

  // Names in the folder, sorted: what a failed run left behind shows here.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(path())) {
      if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(path()).string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Arguments dump_command(const std::string& output) const {
    return Arguments{binary("oscar-dump").string(), "--model", model(), "--text", text(), "--probes", "4", "-o", output} + kSmall;
  }

 private:
  TempDir folder_;
};

inline Outcome tool(const std::string& name, const Arguments& arguments, const std::string& input = "") {
  return run(Arguments{binary(name).string()} + arguments, input);
}

// The four programs one after the other; every artifact stays in the bench's folder.
inline void run_pipeline(const Bench& bench, const Arguments& dump_options = {}) {
  const auto done = [](const Outcome& outcome) { ASSERT_EQ(outcome.code, 0) << outcome; };
  done(run(bench.dump_command(bench.stats()) + dump_options));
  done(tool("oscar-fit", {bench.stats(), "-o", bench.rotations()}));
  done(tool("oscar-clip", {bench.stats(), "--rotations", bench.rotations(), "-o", bench.clip()}));
  done(tool("oscar-verify", {bench.stats(), "--rotations", bench.rotations(), "--clip", bench.clip(), "--json", (bench / "report.json").string()}));
}

}  // namespace oscar::test
