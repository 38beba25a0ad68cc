// Reports as text and JSON. Schemas are documented in docs/file-formats.md.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "libcalib/clip.h"
#include "libcalib/compare.h"
#include "libcalib/verify.h"

namespace oscar {

nlohmann::ordered_json to_json(const Provenance& provenance);
nlohmann::ordered_json to_json(const VerifyReport& report);                      // "oscar-verify/1"
nlohmann::ordered_json to_json(const ClipReport& report);                        // "oscar-clip/1"
nlohmann::ordered_json to_json(const Comparison& comparison, double tolerance);  // "oscar-compare/1"

// A JSON file of that schema, as the tools write it. std::invalid_argument when there is no such file,
// std::runtime_error when it is something else; "expected schema oscar-clip/1, found …".
nlohmann::ordered_json read_report(const std::filesystem::path& path, std::string_view schema);

// Only what verify needs of it: ratios by layer for K and V, and what they were found for.
struct ClipChoice {
  std::map<int, double> k, v;
  double model_k = 0, model_v = 0;
  std::string objective_k, objective_v;
  std::vector<int> probes;
  std::string model_digest;
};
ClipChoice read_clip(const std::filesystem::path& path);
// The curves too, for a report. Of the provenance: the model's name and digest; group sizes are not in the
// file.
ClipReport read_clip_report(const std::filesystem::path& path);

// What a server of the codec's engine is started with: variables and arguments, without the paths of the
// rotations.
std::vector<std::pair<std::string, std::string>> serving_environment(const ClipReport& report);
std::vector<std::string> serving_flags(const ClipReport& report);

// A table for a terminal, sorted by attention KL; by token KL, the exact model first, where that was
// measured.
std::string to_text(const VerifyReport& report, bool per_layer);
std::string to_text(const ClipReport& report);      // the curve of the model, the choice, serving flags
std::string to_text(const Comparison& comparison);  // a line per layer

}  // namespace oscar
