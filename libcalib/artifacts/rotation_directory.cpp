#include "libcalib/artifacts/rotation_directory.h"

#include <algorithm>
#include <array>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "formats/pending_directory.h"
#include "formats/sha256.h"
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/artifacts/nova_bundle.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

bool is_candidate(const fs::path& path) {
  const std::string extension = path.extension().string(), name = path.filename().string();
  return (extension == ".pt" || extension == ".safetensors") &&
         (name.starts_with("k_") || name.starts_with("v_"));
}

// Of `files`, those of the last fit: where manifest.json lists any that are still there, only what it lists. A directory
// that is fitted to again keeps the files of other methods.
std::vector<fs::path> of_last_fit(const fs::path& directory, const std::vector<fs::path>& files) {
  const auto manifest = read_manifest(directory);
  const bool current =
      std::ranges::any_of(manifest, [&](const auto& entry) { return fs::exists(directory / entry.name); });
  if (!current) return files;
  std::vector<fs::path> listed;
  std::ranges::copy_if(files, std::back_inserter(listed), [&](const fs::path& file) {
    return std::ranges::find(manifest, file.filename().string(), &ManifestFile::name) != manifest.end();
  });
  return listed;
}

// In name order. Of two with one stem, which have one content, the .pt.
std::vector<fs::path> candidates(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".oscar_") && name.ends_with(".pending.json")) {
      throw failure(
          "{}: {} says that the serving engine is still writing this pair, or was stopped while it did: K "
          "and V "
          "may not belong together; let it finish, or calibrate again",
          directory.string(), name);
    }
    if (entry.is_regular_file() && is_candidate(entry.path())) files.push_back(entry.path());
  }
  if (error)
    throw invalid("{}: expected a directory of rotation files: {}", directory.string(), error.message());
  std::sort(files.begin(), files.end());
  files = of_last_fit(directory, files);
  const auto twin = [](const fs::path& a, const fs::path& b) { return a.stem() == b.stem(); };
  files.erase(std::unique(files.begin(), files.end(), twin), files.end());
  return files;
}

std::string names(const std::vector<fs::path>& files) {
  std::string text;
  for (const auto& file : files) text += (text.empty() ? "" : ", ") + file.filename().string();
  return text;
}

// The engine's default codec is what a rotation file stands for; anything else must be said.
bool needs_codes_file(const CacheCodes& codes) {
  const auto plain = [](const SideCodes& side) {
    return has_rotation_file(side) && codec_names(side) == "sglang-prefill";
  };
  return !plain(codes.k) || !plain(codes.v);
}

std::vector<ManifestFile> write_all(const fs::path& directory, const FitRecord& record,
                                    const std::vector<RotationFormat>& formats) {
  std::vector<ManifestFile> files;
  const CacheCodes& codes = record.result.codes;
  for (const SideCodes* side : {&codes.k, &codes.v}) {
    if (!has_rotation_file(*side)) continue;
    const RotationSet set = rotation_set(*side);
    for (const RotationFormat format : formats) {
      const bool pt = format == RotationFormat::Pt;
      const std::string name = rotation_file_stem(set) + (pt ? ".pt" : ".safetensors");
      if (pt) {
        write_rotations_pt(directory / name, set, record.provenance);
      } else {
        write_rotations_safetensors(directory / name, set, record.provenance);
      }
      files.push_back({name, side_name(set.side), pt ? "pt" : "safetensors", set.objective,
                       sha256_file(directory / name)});
    }
  }
  if (needs_codes_file(codes)) {
    write_codes(directory / kCodesFile, codes, record.provenance);
    files.push_back({kCodesFile, "kv", "safetensors", codes.name, sha256_file(directory / kCodesFile)});
  }
  if (is_nova_bundle(codes.k)) {
    write_nova_bundle(directory / kNovaFile, codes.k);
    files.push_back({kNovaFile, "k", "pt", codes.k.objective, sha256_file(directory / kNovaFile)});
  }
  write_manifest(directory, record, files);
  return files;
}

}  // namespace

std::vector<ManifestFile> write_fit_directory(const fs::path& given, const FitRecord& record,
                                              const std::vector<RotationFormat>& formats) {
  // "rotations/" names the same directory as "rotations".
  const fs::path directory = given.has_filename() ? given : given.parent_path();
  if (directory.empty()) throw invalid("the output directory has an empty name");
  const HoldInterrupts until_whole;
  if (fs::exists(directory)) {
    make_directory(directory);
    return write_all(directory, record, formats);
  }
  PendingDirectory pending(directory);
  auto files = write_all(pending.path(), record, formats);
  pending.publish();
  return files;
}

bool has_codes(const fs::path& directory) {
  const fs::path file = directory / kCodesFile;
  return fs::exists(file) && !of_last_fit(directory, {file}).empty();
}

bool has_rotations(const fs::path& directory) {
  const auto files = candidates(directory);
  return std::ranges::all_of(std::array{"k_rotation", "v_rotation"}, [&](const char* start) {
    return std::ranges::any_of(
        files, [&](const fs::path& file) { return file.filename().string().starts_with(start); });
  });
}

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
