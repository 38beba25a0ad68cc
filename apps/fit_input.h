// What oscar-fit reads: statistics, raw dumps, moments and rows of the serving engine, or shapes alone.
#pragma once
#include "apps/cli.h"
#include "libcalib/artifacts/raw_dump.h"
#include "libcalib/fit.h"

namespace oscar::cli {

struct FitSource {
  std::vector<std::filesystem::path> paths;
  std::optional<IdSpace> id_space;  // of a raw dump
  int layers = 0, head_dim = 0;     // shapes without statistics
  int threads = 1;
  bool quiet = false;
};
struct LoadedInput {
  Provenance provenance;
  FitInput fit;
  std::vector<std::string> notes{};
  bool scores = false;  // targets that need the softmax can be fitted, and oscar-verify can read the file
};
// By content. std::invalid_argument for no input, for kinds that do not go together and for one that is no
// input of a fit.
LoadedInput read_fit_input(const FitSource& source);

}  // namespace oscar::cli
