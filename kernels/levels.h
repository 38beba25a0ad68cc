// Internal: the kernels of one SIMD level. The tests walk the table; everyone else calls the public headers.
#pragma once
#include <span>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/cached_attention.h"
#include "kernels/codebook.h"
#include "kernels/decode_part.h"
#include "kernels/diagnose.h"
#include "kernels/gram.h"
#include "kernels/int2.h"
#include "kernels/quadratic_gram.h"
#include "kernels/score_stats.h"

namespace oscar {

struct KernelTable {
  std::string_view name;
  bool (*supported)();  // by this machine
  void (*causal_attention)(const AttentionProblem&, float* o, float* lse);
  void (*cached_attention)(const CachedAttentionProblem&, float* o, float* lse);
  void (*score_stats)(const ScoreStatsProblem&, const ScoreStatsResult&);
  void (*diagnose)(const DiagnoseProblem&, const DiagnoseResult&);
  void (*add_gram)(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* out);
  void (*add_rows)(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* sum);
  void (*add_quadratic_gram)(const QuadraticGram&, double* gram, double* total);
  void (*int2_encode)(const int2::Rule&, const float* rows, int64_t n, uint8_t* codes, float* scale_zero);
  void (*int2_decode)(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n,
                      float* rows);
  void (*nearest_codeword)(const float* rows, int64_t stride, int64_t n, int g, const float* codebook,
                           int count, uint16_t* index, int64_t index_stride, float* distance);
  int64_t (*decode_scratch)(const CacheFormat&);  // bytes a thread needs for decode_part
  void (*decode_part)(const DecodePart&, const float* q, void* scratch, float* partial);
};

// One a source file; nullptr where the compiler had no flags for it.
extern const KernelTable* const generic_kernels;
extern const KernelTable* const avx2_kernels;
extern const KernelTable* const avx512_kernels;

// Every level that was compiled, lowest first.
std::span<const KernelTable* const> kernel_levels();

// The level for a value of OSCAR_CPU: the highest that the machine has when the value is empty, else the one
// named. std::invalid_argument for an unknown name, or one that this machine does not have.
const KernelTable& choose_level(std::string_view name);

// decode() at a level.
Status decode_with(const KernelTable& level, const CacheFormat& format, const DecodeBatch& batch,
                   const DecodeInputs& inputs, const DecodeOutputs& outputs);

}  // namespace oscar
