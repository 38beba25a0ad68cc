// The sums of moments.def for one layer. They stream (update) and they merge; merging equals one pass.
#pragma once
#include <array>
#include <span>
#include <string_view>

#include "libcalib/types.h"

namespace oscar {

enum class SumKind : uint8_t { MatrixK, MatrixV, RowK, RowV, Scalar };
enum class Sum : uint8_t {
#define OSCAR_SUM(field, kind, meaning) field,
#include "libcalib/moments.def"
#undef OSCAR_SUM
};
struct SumInfo {
  Sum sum;
  std::string_view name;
  SumKind kind;
  std::string_view meaning;
};
std::span<const SumInfo> sum_table();  // in the order of the enum
inline constexpr size_t kSumCount = 0
#define OSCAR_SUM(field, kind, meaning) +1
#include "libcalib/moments.def"
#undef OSCAR_SUM
    ;

// Doubles of one KV head's sum.
int64_t size_of(Sum sum, const LayerShape& shape);

// What kernels/score_stats.h says of one sequence.
struct SequenceScores {
  std::span<const int32_t> queries;                         // (n) counted positions
  const float *mass, *sink_mass, *entropy;                  // (Hq, n)
  const double *u, *w;                                      // (Hkv, T)
  const float* a = nullptr;                                 // (Hq, n); nullptr: no output importances
  const double* x = nullptr;                                // (Hkv, T)
};

class LayerSums {
 public:
  LayerSums() = default;
  explicit LayerSums(const LayerShape& shape);  // all zero

  const LayerShape& shape() const { return shape_; }
  int64_t tokens = 0;         // rows of k and v counted; q and o have tokens * H rows a KV head
  int64_t score_queries = 0;  // query positions counted in the score statistics; rows are score_queries * H
  int64_t score_tokens = 0;   // tokens of the sequences that the score statistics looked at

  std::span<double> values(Sum sum) { return values_[static_cast<size_t>(sum)]; }  // (Hkv, …) of its kind
  std::span<const double> values(Sum sum) const { return values_[static_cast<size_t>(sum)]; }
  MatrixMap matrix(Sum sum, int head);
  ConstMatrixMap matrix(Sum sum, int head) const;
  VectorMap row(Sum sum, int head);
  ConstVectorMap row(Sum sum, int head) const;
  double& scalar(Sum sum, int head);
  double scalar(Sum sum, int head) const;
  int64_t size_per_head(Sum sum) const;

  // Rows are float32, post-RoPE, one sequence (or any part of one): q (T, Hq, Dk), k (T, Hkv, Dk), v (T, Hkv, Dv),
  // o (T, Hq, Dv). o may be nullptr (raw dumps have none).
  void add_rows(const float* q, const float* k, const float* v, const float* o, int64_t tokens);
  // Second pass: vv_proxy and proxy_weight from Sigma_Q (Hkv matrices, mean over tokens and query heads).
  void add_proxy(const std::vector<Matrix>& sigma_q, const float* k, const float* v, int64_t tokens);
  void add_scores(const float* q, const float* k, const float* v, int64_t tokens, const SequenceScores& scores);

  // Every sum, `tokens`, `score_queries` and `score_tokens` are added. Throws std::invalid_argument when the shapes differ.
  void merge(const LayerSums& other);
  bool finite() const;

 private:
  LayerShape shape_;
  std::array<std::vector<double>, kSumCount> values_;
};

}  // namespace oscar
