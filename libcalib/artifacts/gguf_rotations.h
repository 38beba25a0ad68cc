// Rotations baked into a GGUF model: blk.<layer>.attn_k_rot.weight and blk.<layer>.attn_v_rot.weight, F32 [d,
// d], stored transposed so that ggml_mul_mat(rot, K) is K R (the llama.cpp fork of OSCAR;
// docs/file-formats.md).
//
// The engine multiplies what it caches. Architectures whose keys are cached with the rotary halves
// interleaved (row 2i is the i-th of the first half, row 2i + 1 the i-th of the second) get a K rotation with
// its rows in that order.
#pragma once
#include "formats/gguf.h"
#include "libcalib/artifacts/rotary_order.h"
#include "libcalib/artifacts/rotation_file.h"

namespace oscar {

// Both sides, in the basis of the original checkpoint. The file has no eigenvalues; objectives
// are those of our metadata, "unknown_r_h_pbr" of files that others wrote. std::runtime_error for a layer
// that has one of the two only, another type or another shape; std::invalid_argument where the file has no
// rotations.
RotationPair read_gguf_rotations(const std::filesystem::path& path);

// What the engine would compute with the stored tensor, against k R, before anything is written.
struct GgufExport {
  std::string architecture;
  RotaryOrder order = RotaryOrder::Same;
  double round_trip = 0;           // largest relative error of the check
  std::vector<std::string> notes;  // what the engine must be told
};
// A copy of `base` with the rotations and their provenance ("oscar.rotation.…"); rotations that are there
// already are replaced, so that writing again gives the same bytes. std::invalid_argument where the model and
// the rotations do not belong together (layers, head dims), for maps that no engine reads from a GGUF (one
// per KV head, means, inverses), for an architecture whose rotary order is not known unless `order` says it,
// and where a type id of the base is a private one.
GgufExport write_gguf_rotations(const std::filesystem::path& path, const GgufFile& base,
                                const RotationPair& rotations, const Provenance& provenance,
                                std::optional<RotaryOrder> order = {});

}  // namespace oscar
