// turboquant_k3v3.pt: rotations and scalar levels of TurboQuant as the simulated engine of NOVA-KV reads
// them, and the affine codec that its reader takes in the same file (docs/file-formats.md). Source of the
// format: the bundle and its reader in Amir-zsh/nova-kv.
#pragma once
#include <filesystem>

#include "libcalib/rotation.h"

namespace oscar {

struct TurboQuantBundle {
  std::string codec = "turboquant";  // or "oscar_affine"
  // Layers 0 to L - 1, as the file counts them, objective = codec. Rows go through as x R: the matrices that
  // "turboquant" files hold are applied as x Pi^T, so R = Pi^T; "oscar_affine" files hold R.
  RotationSet k, v;
  int k_bits = 0, v_bits = 0;
  // (2^bits) ascending levels of a channel of x R / |x|, whose variance is 1 / D; "oscar_affine" has none.
  std::vector<double> k_centroids, v_centroids;
  // "oscar_affine": ratio of each side's clip, 1 is none, and quantisation groups of a row.
  double k_clip = 1, v_clip = 1;
  int groups = 1;
  int64_t seed = 0;
  std::string note;
};
// std::runtime_error naming file and key for what is missing, of another shape, not orthogonal, or not
// ascending.
TurboQuantBundle read_turboquant_bundle(const std::filesystem::path& path);

}  // namespace oscar
