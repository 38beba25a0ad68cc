#include "libdump/partial.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "formats/error.h"

namespace oscar {

namespace fs = std::filesystem;

PartialRun::PartialRun(const fs::path& output, const std::map<std::string, std::string>& fingerprint,
                       bool resume, bool restart)
    : folder_(output.string() + ".partial") {
  const nlohmann::json mine(fingerprint);
  const fs::path parent = output.has_parent_path() ? output.parent_path() : fs::path(".");
  if (!fs::is_directory(parent))
    throw invalid("{}: cannot be written: there is no folder {}", output.string(), parent.string());
  if (fs::is_directory(output))
    throw invalid("{}: expected a file to write, found a folder", output.string());
  if (restart) remove();
  if (has_parts()) {
    if (!resume)
      throw invalid("{}: an interrupted run is kept here: --resume continues it, --restart throws it away",
                    folder_.string());
    const auto file = folder_ / "run.json";
    const auto theirs = nlohmann::json::parse(fs::exists(file) ? read_text(file) : "", nullptr, false);
    if (!theirs.is_object()) throw failure("{}: is missing or damaged: use --restart", file.string());
    for (const auto& [key, value] : mine.items()) {
      const auto found = theirs.value(key, nlohmann::json("nothing"));
      if (found != value)
        throw invalid(
            "{}: the interrupted run had {} = {}, this one has {}: run it with the same options, or use "
            "--restart",
            folder_.string(), key, found.dump(), value.dump());
    }
    return;
  }
  make_directory(folder_);
  write_file(folder_ / "run.json", mine.dump(2) + "\n");
}

fs::path PartialRun::part(int layer) const {
  return folder_ / fmt::format("layer_{:04}.h5", layer);
}
fs::path PartialRun::hidden(int layer) const {
  return folder_ / fmt::format("hidden_{:04}.f32", layer);
}
bool PartialRun::has_part(int layer) const {
  return fs::exists(part(layer));
}

bool PartialRun::has_parts() const {
  std::error_code none;  // no folder, no parts
  for (const auto& entry : fs::directory_iterator(folder_, none)) {
    if (entry.path().extension() == ".h5") return true;
  }
  return false;
}

PartialRun::~PartialRun() {
  std::error_code ignored;
  if (has_parts()) return;
  fs::remove(folder_ / "run.json", ignored);
  fs::remove(folder_, ignored);  // if nothing of anybody else is in it
}

int PartialRun::hidden_layer() const {
  int layer = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    int found = 0;
    if (std::sscanf(entry.path().filename().c_str(), "hidden_%d.f32", &found) == 1 &&
        entry.path() == hidden(found))
      layer = std::max(layer, found);
  }
  return layer;
}

void PartialRun::forget_hidden_but(int layer) const {
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with("hidden_") && entry.path() != hidden(layer))
      fs::remove(entry.path());
  }
}

void PartialRun::remove() {
  std::error_code error;
  fs::remove_all(folder_, error);
  if (error) throw failure("{}: cannot be removed: {}", folder_.string(), error.message());
}

}  // namespace oscar
