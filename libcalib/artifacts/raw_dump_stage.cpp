#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "formats/atomic_write.h"
#include "formats/error.h"
#include "libcalib/artifacts/raw_dump_parts.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDumps = "qkv_dumps";
constexpr const char* kStaged = "llamacpp";

std::vector<fs::path> entries(const fs::path& directory) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    paths.push_back(it->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool has_layers(const fs::path& directory) {
  return std::ranges::any_of(entries(directory), [](const fs::path& path) {
    return path.filename().string().starts_with("layer_") && fs::is_directory(path);
  });
}

bool unconverted(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".oskv") || name.ends_with(".meta.txt");
}

// A stream or raw tensor of llama-rot-kv-calibrate in `directory` or the folders that it makes; empty: none.
fs::path find_unconverted(const fs::path& directory, int depth = 3) {
  for (const fs::path& path : entries(directory)) {
    const std::string name = path.filename().string();
    if (unconverted(path)) return path;
    const bool enter = name == "raw_llama_debug" || name.starts_with("batch_") || name.starts_with("prompt_");
    if (depth == 0 || !enter) continue;
    if (const fs::path found = find_unconverted(path, depth - 1); !found.empty()) return found;
  }
  return {};
}

[[noreturn]] void refuse_unconverted(const fs::path& path) {
  throw invalid(
      "{}: {} of the llama.cpp rotation pipeline before its conversion, which is not read here: let the dump "
      "stage of that pipeline convert it to {}/{}/layer_<L>/{{q,k,v}}/<n>.pt and give its work directory",
      path.string(), path.extension() == ".oskv" ? "an .oskv stream" : "a raw tensor (.meta.txt and .bin)",
      kDumps, kStaged);
}

nlohmann::json read_object(const fs::path& path) {
  auto json = nlohmann::json::parse(read_text(path), nullptr, false);
  if (!json.is_object()) throw failure("{}: expected a JSON object", path.string());
  return json;
}

int64_t count_in(const nlohmann::json& meta, const char* key, const fs::path& path) {
  const auto value = meta.find(key);
  if (value == meta.end() || !value->is_number_integer())
    throw failure("{}: expected a whole number {}", path.string(), key);
  return value->get<int64_t>();
}

}  // namespace

RawFolder find_raw_folder(const fs::path& given) {
  std::error_code error;
  if (!fs::is_directory(given, error)) {
    if (fs::exists(given, error) && unconverted(given)) refuse_unconverted(given);
    throw invalid("{}: expected the directory of a raw dump, found {}", given.string(),
                  fs::exists(given, error) ? "a file" : "nothing");
  }
  if (has_layers(given)) {
    const fs::path whole = fs::canonical(given);
    const fs::path parent = whole.parent_path();
    const bool staged = whole.filename() == kStaged && parent.filename() == kDumps;
    return {given, staged ? parent.parent_path() : fs::path{}, false};
  }
  const fs::path staged = given / kDumps / kStaged;
  if (has_layers(staged)) return {staged, given, true};
  if (fs::is_directory(staged))
    throw failure(
        "{}: the dump stage is not finished: {}/{} has no layer yet; run the pipeline again with its resume",
        given.string(), kDumps, kStaged);
  if (const fs::path found = find_unconverted(given); !found.empty()) refuse_unconverted(found);
  for (const fs::path& path : entries(given / kDumps)) {
    if (has_layers(path)) throw invalid("{}: has no layer itself; give {}", given.string(), path.string());
  }
  throw invalid("{}: expected a raw dump with layer_<id>/{{q,k,v}}/<chunk>.pt, found no layer",
                given.string());
}

void check_stage(const RawFolder& folder, const RawDump& dump, std::vector<std::string>& notes) {
  if (folder.work.empty()) return;
  const fs::path meta_path = folder.work / "calibration_meta.json";
  const fs::path manifest = folder.work / "stage_manifests" / "dump.json";
  const auto missing = [&](const fs::path& path, const std::string& hint) {
    if (folder.work_given)
      throw failure(
          "{}: the dump stage is not finished: there is no {}; run the pipeline again with its resume{}",
          folder.work.string(), path.lexically_relative(folder.work).string(), hint);
    notes.push_back(
        fmt::format("warning: there is no {} that says that the dump stage was finished", path.string()));
  };
  if (fs::exists(meta_path)) {
    const auto meta = read_object(meta_path);
    const int64_t captured = count_in(meta, "num_prompts_captured", meta_path);
    // A resumed run counts all prompts, but the tokens of its own alone.
    const int64_t before =
        meta.contains("resumed_prompts") ? count_in(meta, "resumed_prompts", meta_path) : 0;
    int64_t tokens = 0;
    for (size_t i = 0; i < dump.chunks.size(); ++i) {
      const auto& lengths = dump.chunk_lengths[i];
      if (dump.chunks[i] > before) tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
    }
    const auto check = [&](const char* key, int64_t said, int64_t found, const char* what) {
      if (said == found) return;
      throw failure(
          "{}: {} says {} {}, the dump has {}: the dump stage is not finished, or was begun again; run the "
          "pipeline again with its resume",
          meta_path.string(), key, said, what, found);
    };
    check("num_prompts_captured", captured, static_cast<int64_t>(dump.chunks.size()), "prompts");
    check("dumped_tokens", count_in(meta, "dumped_tokens", meta_path), tokens, "tokens");
  } else {
    missing(meta_path, "");
  }
  if (!fs::exists(manifest)) {
    missing(manifest,
            fmt::format(", or, if its dump script was run alone, give {}", folder.directory.string()));
  } else if (const auto stage = read_object(manifest); stage.value("stage", nlohmann::json()) != "dump") {
    throw failure("{}: expected the manifest of the stage dump", manifest.string());
  }
}

}  // namespace oscar
