// Any file of this field into another, where its meaning allows it.
#pragma once
#include <filesystem>
#include <span>

#include "libcalib/artifacts/raw_dialects.h"
#include "libcalib/artifacts/rotary_order.h"
#include "libcalib/rotation.h"

namespace oscar {

// What a path holds, told by its content and never by its name.
enum class FileKind : uint8_t {
  Rotations,          // .pt v1, v2, v3 or .safetensors: one side
  RotationDirectory,  // of oscar-fit, both sides
  Gguf,               // a model, with rotations or without
  Codes,              // codes.safetensors
  NovaBundle,         // codebook.pt
  TurboQuant,
  ProductCodebooks,  // PQ and RVQ
  Moments,
  Rows,
  Statistics,  // stats.h5
  RawDump
};
// std::invalid_argument for a path that is missing, std::runtime_error for one that is none of these.
FileKind kind_of(const std::filesystem::path& path);
std::string_view describe(FileKind kind);  // "rotations", "NOVA bundle", …

// The rotations of a file that holds them, K before V: one side, or both of a directory, a GGUF model or a
// TurboQuant bundle. std::invalid_argument for every other kind.
std::vector<RotationSet> rotations_in(const std::filesystem::path& path);

struct ConversionTarget {
  std::string_view name;     // of --to
  std::string_view summary;  // what is written, and from what
};
std::span<const ConversionTarget> conversion_targets();

struct ConvertOptions {
  std::string to;              // a target's name; "": by the name of the output
  std::filesystem::path base;  // the model that GGUF rotations go into
  std::optional<RotaryOrder> order;
  int kv_heads = 0;                 // for v2 from one rotation a layer
  std::vector<int> layer_ids;       // global ids of a file that counts layers from 0
  std::optional<IdSpace> id_space;  // of a raw dump
  int threads = 1;                  // for what is computed: the second pass of shards
};
struct Conversion {
  std::vector<std::filesystem::path> files;
  std::vector<std::string> notes;  // what the new file cannot say, and what its engine must be told
};

// `inputs` together hold what the target needs: K and V for gguf and codes, one side for a rotation file. An
// output without an extension is a directory for both sides. std::invalid_argument when the target cannot say
// what the inputs mean: heads that differ in a v1 file, means or maps that are not orthogonal in v1 and v2,
// codes of another shape in codebook.pt. Atomic.
Conversion convert(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                   const ConvertOptions& options);

}  // namespace oscar
