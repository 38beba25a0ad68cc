#include "kernels/cpu.h"
#include "kernels/levels.h"

namespace oscar {

std::string_view cpu_level() { return "generic"; }
void score_stats(const ScoreStatsProblem& problem, const ScoreStatsResult& result) {
  score_stats_reference(problem, result);
}
void diagnose(const DiagnoseProblem& problem, const DiagnoseResult& result) { diagnose_reference(problem, result); }
void add_gram(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* out) {
  add_gram_reference(rows, stride, weights, n, dim, out);
}
void add_rows(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* sum) {
  for (int64_t r = 0; r < n; ++r) {
    for (int i = 0; i < dim; ++i) sum[i] += (weights ? double(weights[r]) : 1.0) * rows[r * stride + i];
  }
}
namespace int2 {
void encode(const Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero) {
  encode_reference(rule, rows, n, codes, scale_zero);
}
void decode(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n, float* rows) {
  decode_reference(dim, groups, codes, scale_zero, n, rows);
}
}  // namespace int2
}  // namespace oscar
