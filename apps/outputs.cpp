#include "apps/measure.h"

namespace oscar::cli {
namespace {

namespace fs = std::filesystem;

bool same_place(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  return fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

// Of a directory of rotations or codes: what they are read from. A clip.json may lie beside them.
bool is_read_from(const fs::path& path, const fs::path& input) {
  std::error_code ignored;
  if (!fs::is_directory(input, ignored)) return same_place(path, input);
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const bool artifact =
      path.extension() == ".pt" || path.extension() == ".safetensors" || path.filename() == "manifest.json";
  return artifact && same_place(parent, input);
}

void check_place(const Output& output) {
  const fs::path path = output.path;
  std::error_code ignored;
  if (path.filename().empty() || fs::is_directory(path, ignored))
    throw invalid("{} {}: expected a file name, found a directory", output.option, output.path);
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(parent, ignored))
    throw invalid("{} {}: there is no directory {}", output.option, output.path, parent.string());
}

}  // namespace

void check_outputs(const std::vector<Output>& outputs, const std::vector<fs::path>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = outputs[i];
    if (output.path.empty()) continue;
    for (size_t j = 0; j < i; ++j) {
      const Output& other = outputs[j];
      if (other.path.empty()) continue;
      const bool both = output.path == "-" || other.path == "-" ? output.path == other.path
                                                                : same_place(output.path, other.path);
      if (both)
        throw invalid("{} and {} both write {}: give each its own", other.option, output.option,
                      output.path == "-" ? "stdout" : output.path);
    }
    if (output.path == "-") continue;
    check_place(output);
    for (const auto& input : inputs) {
      if (is_read_from(output.path, input))
        throw invalid("{} {}: is an input of this run and would be overwritten; name another file",
                      output.option, output.path);
    }
  }
}

}  // namespace oscar::cli
