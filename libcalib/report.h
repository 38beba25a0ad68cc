// Reports as text and JSON. Schemas are documented in docs/file-formats.md.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "libcalib/clip.h"
#include "libcalib/verify.h"

namespace oscar {

nlohmann::ordered_json to_json(const Provenance& provenance);
nlohmann::ordered_json to_json(const VerifyReport& report);   // "oscar-verify/1"
nlohmann::ordered_json to_json(const ClipReport& report);     // "oscar-clip/1"
// Only what verify needs of it: ratios by layer for K and V.
struct ClipChoice {
  std::map<int, double> k, v;
  double model_k = 0, model_v = 0;
};
ClipChoice read_clip(const std::filesystem::path& path);

std::string to_text(const VerifyReport& report, bool per_layer);  // a table for a terminal, sorted by attention KL
std::string to_text(const ClipReport& report);                    // the curve of the model, the choice, serving flags

}  // namespace oscar
