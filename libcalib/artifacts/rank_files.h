// What oscar_moments_rank<r>.pt and oscar_rows_rank<r>.pt have in common, which the serving engine's
// calibrator writes: one file a tensor-parallel rank, each with a contiguous slice of the KV heads. A rank
// that only repeats another's heads writes none, and tp_rank and tp_size count those that do.
#pragma once
#include <filesystem>

#include "libcalib/artifacts/pt_fields.h"
#include "libcalib/artifacts/statistics_file.h"

namespace oscar {

struct RankHeader {
  std::string model_path;     // as the engine was given it: a name, or a path on its machine
  std::string prompt_sha256;  // of the calibration text; its meaning is the writer's
  int64_t tokens = 0;         // behind everything in the file
  int tp_rank = 0, tp_size = 1;
  int local_kv_heads = 0;                               // in this file
  int kv_heads = 0, q_heads = 0, dim_k = 0, dim_v = 0;  // of the model
};
struct RankFile {
  std::filesystem::path path;
  PtValue root;
  RankHeader header;
  std::map<int, const PtValue*> layers;  // by global id, inside `root`
  pt_fields::Fields layer(int id) const;
};

// In the order of the ranks, in whatever order they were given. Throws std::invalid_argument for a rank that
// is missing, doubled or of another run (names field and both values), std::runtime_error for a damaged file.
std::vector<RankFile> read_ranks(const std::vector<std::filesystem::path>& paths);

// The keys of a header, `layers` not yet; model_revision is None.
PtDict rank_header(int64_t format_version, const RankHeader& header);
// What is known of the run: model_name and text_digest are model_path and prompt_sha256.
StatisticsHeader statistics_header(const RankHeader& header, const std::vector<LayerShape>& layers);

}  // namespace oscar
