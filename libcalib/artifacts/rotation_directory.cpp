#include <algorithm>

#include "formats/error.h"
#include "libcalib/artifacts/manifest.h"
#include "libcalib/artifacts/rotation_file.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

bool is_candidate(const fs::path& path) {
  const std::string extension = path.extension().string(), name = path.filename().string();
  return (extension == ".pt" || extension == ".safetensors") &&
         (name.starts_with("k_") || name.starts_with("v_"));
}

// In name order. Where files that manifest.json lists are still there, only those: they are of the last fit.
// Of two with one stem, which have one content, the .pt.
std::vector<fs::path> candidates(const fs::path& directory) {
  std::vector<fs::path> files, listed;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.is_regular_file() && is_candidate(entry.path())) files.push_back(entry.path());
  }
  if (error)
    throw invalid("{}: expected a directory of rotation files: {}", directory.string(), error.message());
  std::sort(files.begin(), files.end());
  const auto manifest = read_manifest(directory);
  std::copy_if(files.begin(), files.end(), std::back_inserter(listed), [&](const fs::path& file) {
    return std::any_of(manifest.begin(), manifest.end(),
                       [&](const auto& entry) { return file.filename() == entry.name; });
  });
  if (!listed.empty()) files = listed;
  const auto twin = [](const fs::path& a, const fs::path& b) { return a.stem() == b.stem(); };
  files.erase(std::unique(files.begin(), files.end(), twin), files.end());
  return files;
}

std::string names(const std::vector<fs::path>& files) {
  std::string text;
  for (const auto& file : files) text += (text.empty() ? "" : ", ") + file.filename().string();
  return text;
}

}  // namespace

RotationPair read_rotation_directory(const fs::path& path) {
  const std::vector<fs::path> files = candidates(path);
  std::vector<RotationSet> k, v;
  for (const auto& file : files) {
    RotationSet set = read_rotations(file);
    (set.side == Side::K ? k : v).push_back(std::move(set));
  }
  if (k.size() != 1 || v.size() != 1) {
    throw invalid(
        "{}: expected one rotation file of K and one of V, found {} and {} ({}); oscar-fit writes such a "
        "directory",
        path.string(), k.size(), v.size(), files.empty() ? "no file k_… or v_…" : names(files));
  }
  return {std::move(k[0]), std::move(v[0])};
}

}  // namespace oscar
