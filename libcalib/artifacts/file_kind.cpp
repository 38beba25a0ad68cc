#include <algorithm>

#include "formats/error.h"
#include "formats/mapped_file.h"
#include "formats/pt.h"
#include "formats/safetensors.h"
#include "libcalib/artifacts/codes_file.h"
#include "libcalib/artifacts/convert.h"
#include "libcalib/artifacts/gguf_rotations.h"
#include "libcalib/artifacts/rotation_directory.h"
#include "libcalib/artifacts/turboquant_bundle.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDescriptions[] = {
    "rotations",           "a directory of rotations", "a GGUF model", "codes",        "a NOVA bundle",
    "a TurboQuant bundle", "PQ or RVQ codebooks",      "moments",      "sampled rows", "statistics",
    "a raw dump"};

FileKind kind_of_directory(const fs::path& path) {
  for (const auto& entry : fs::directory_iterator(path)) {
    const auto name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with("layer_")) return FileKind::RawDump;
  }
  if (fs::exists(path / "qkv_dumps") || fs::exists(path / "calibration_meta.json")) return FileKind::RawDump;
  return has_codes(path) && !has_rotations(path) ? FileKind::Codes : FileKind::RotationDirectory;
}

// Of a layer's entry, or of the file.
FileKind kind_of_pt(const fs::path& path) {
  const std::string where = path.string();
  const PtValue root = read_pt(path);
  const PtDict& file = root.dict(where);
  if (const PtValue* layers = file.find("layers")) {
    const auto& entries = layers->dict(where + ": layers").items;
    if (entries.empty()) throw failure("{}: no layers", where);
    const PtDict& layer = entries[0].second.dict(where + ": first layer");
    if (layer.find("M_q")) return FileKind::Moments;
    if (layer.find("q_samples")) return FileKind::Rows;
    if (layer.find("rotation")) return FileKind::Rotations;
  }
  if (file.find("forward") && file.find("codebooks")) return FileKind::NovaBundle;
  if (file.find("n_sub")) return FileKind::ProductCodebooks;
  if (file.find("k_rotation") && file.find("v_rotation")) return FileKind::TurboQuant;
  throw failure(
      "{}: is none of the files that are known here: rotations, moments, rows, a NOVA or a TurboQuant "
      "bundle, PQ or RVQ codebooks",
      where);
}

}  // namespace

std::string_view describe(FileKind kind) {
  return kDescriptions[static_cast<size_t>(kind)];
}

FileKind kind_of(const fs::path& path) {
  if (!fs::exists(path)) throw invalid("{}: does not exist", path.string());
  if (fs::is_directory(path)) return kind_of_directory(path);
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes().first(std::min<size_t>(file->bytes().size(), 8));
  const std::string_view magic(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (magic.starts_with("GGUF")) return FileKind::Gguf;
  if (magic.starts_with("\x89HDF")) return FileKind::Statistics;
  if (magic.starts_with("PK") || path.extension() == ".pt") return kind_of_pt(path);
  if (path.extension() != ".safetensors")
    throw failure("{}: is neither GGUF, HDF5, .pt nor .safetensors", path.string());
  return read_safetensors(path).metadata.contains("schema") ? FileKind::Codes : FileKind::Rotations;
}

std::vector<RotationSet> rotations_in(const fs::path& path) {
  const auto both = [](RotationPair pair) { return std::vector{std::move(pair.k), std::move(pair.v)}; };
  switch (const FileKind kind = kind_of(path); kind) {
    case FileKind::Rotations:
      return {read_rotations(path)};
    case FileKind::RotationDirectory:
      return both(read_rotation_directory(path));
    case FileKind::Gguf:
      return both(read_gguf_rotations(path));
    case FileKind::TurboQuant: {
      auto bundle = read_turboquant_bundle(path);
      return {std::move(bundle.k), std::move(bundle.v)};
    }
    default:
      throw invalid("{}: expected rotations, found {}", path.string(), describe(kind));
  }
}

}  // namespace oscar
