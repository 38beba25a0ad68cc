// oscar-fit --convert and --absorb-v: files into files, nothing is fitted.
#pragma once
#include "apps/cli.h"
#include "libcalib/artifacts/raw_dialects.h"

namespace oscar::cli {

struct ArtifactArguments {
  bool convert = false;
  std::filesystem::path absorb_model;  // empty: not asked for
  bool fold_output = false;
  std::string to, rotary_order;
  std::filesystem::path base;
  int kv_heads = 0;
  std::vector<int> layer_ids;
  std::optional<IdSpace> id_space;  // of a raw dump; set by the program
};
void add_artifact_options(CLI::App& app, ArtifactArguments& arguments);
bool wanted(const ArtifactArguments& arguments);
// What the options say is done; std::invalid_argument for options that do not go together. `json`: a summary
// on stdout, schema "oscar-convert/1" or "oscar-absorb/1".
int run_artifact_command(const ArtifactArguments& arguments, const std::vector<std::filesystem::path>& inputs,
                         const std::filesystem::path& output, bool json, const Common& common);

}  // namespace oscar::cli
