// Where things lie in stats.h5: what its writer and its reader share.
#pragma once
#include <fmt/format.h>

#include "formats/tensor.h"
#include "libcalib/moments.h"

namespace oscar {

inline constexpr const char* kStatisticsSchema = "oscar-stats/1";

inline std::string layer_path(int id) {
  return fmt::format("/layers/{:04}", id);
}
// Indices of a probe and of a calibration sequence are those of the whole run, in a shard too.
inline std::string probe_path(int id, int index) {
  return fmt::format("{}/probes/{}", layer_path(id), index);
}

// The rows of k and v of one calibration sequence.
inline std::string sequence_path(int id, int64_t sequence) {
  return fmt::format("{}/sequences/{}", layer_path(id), sequence);
}
// What the nearest doubles of the sums leave.
inline std::string remainder_path(int id, size_t plane) {
  return fmt::format("{}/remainders/{}", layer_path(id), plane);
}

// Sums that files written before do not have.
inline bool of_output(Sum sum) {
  return sum == Sum::qq_out || sum == Sum::out || sum == Sum::x || sum == Sum::xk || sum == Sum::xkk ||
         sum == Sum::stream || sum == Sum::stream_queries;
}

inline Shape sum_shape(SumKind kind, const LayerShape& s) {
  switch (kind) {
    case SumKind::MatrixK:
      return {s.kv_heads, s.dim_k, s.dim_k};
    case SumKind::MatrixV:
      return {s.kv_heads, s.dim_v, s.dim_v};
    case SumKind::RowK:
      return {s.kv_heads, s.dim_k};
    case SumKind::RowV:
      return {s.kv_heads, s.dim_v};
    case SumKind::Scalar:
      return {s.kv_heads};
  }
  return {};
}

}  // namespace oscar
