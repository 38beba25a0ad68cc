// The project's own files, for tests about the project itself.
#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace oscar::test {

inline std::filesystem::path source_root() { return OSCAR_SOURCE_DIR; }

// Paths relative to the root, sorted, of every file below `directories` with one of the extensions.
inline std::vector<std::string> sources(const std::vector<std::string>& directories, const std::set<std::string>& extensions) {
  std::vector<std::string> found;
  for (const auto& directory : directories) {
    if (!std::filesystem::exists(source_root() / directory)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_root() / directory)) {
      if (!entry.is_regular_file() || !extensions.contains(entry.path().extension())) continue;
      found.push_back(entry.path().lexically_relative(source_root()).string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

inline std::vector<std::string> lines(const std::string& relative) {
  std::ifstream in(source_root() / relative);
  std::vector<std::string> result;
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

}  // namespace oscar::test
