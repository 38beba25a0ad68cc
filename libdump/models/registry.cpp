#include <filesystem>
#include <fstream>

#include "formats/error.h"
#include "libdump/models/model.h"

namespace oscar {

#define OSCAR_FAMILY(name, gguf, function) \
  std::unique_ptr<Model> function(std::shared_ptr<const GgufFile>, Precision);
#include "libdump/models/models.def"
#undef OSCAR_FAMILY

std::span<const FamilyInfo> family_table() {
  static constexpr FamilyInfo table[] = {
#define OSCAR_FAMILY(name, gguf, function) {name, gguf, function},
#include "libdump/models/models.def"
#undef OSCAR_FAMILY
  };
  return table;
}

std::unique_ptr<Model> open_model(const std::filesystem::path& path, Precision precision) {
  if (std::filesystem::is_directory(path)) {
    throw invalid(
        "{}: expected a .gguf file, found a directory: checkpoints of safetensors are not read yet; convert "
        "the model to GGUF",
        path.string());
  }
  char magic[4] = {};
  if (std::ifstream in(path, std::ios::binary); in.read(magic, 4) && std::string_view(magic, 4) != "GGUF") {
    throw invalid("{}: expected a GGUF model, found a file that does not begin with 'GGUF'", path.string());
  }
  auto file = std::make_shared<const GgufFile>(GgufFile::open(path));
  const auto architecture = file->text("general.architecture");
  if (!architecture)
    throw failure("{}: general.architecture is missing: the file is not a model", path.string());
  std::string known;
  for (const FamilyInfo& family : family_table()) {
    if (family.gguf == *architecture) return family.open_gguf(std::move(file), precision);
    known += (known.empty() ? "" : ", ") + std::string(family.gguf);
  }
  throw invalid("{}: architecture '{}' is not supported; known: {}", path.string(), *architecture, known);
}

}  // namespace oscar
