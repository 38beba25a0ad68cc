#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/levels.h"

namespace oscar {
namespace {

const KernelTable& level() {
  static const KernelTable& chosen = [&]() -> const KernelTable& {
    const char* name = std::getenv("OSCAR_CPU");
    return choose_level(name ? name : "");
  }();
  return chosen;
}

void check(bool good, const char* function, const char* expected) {
  if (!good) throw std::invalid_argument(std::string(function) + ": " + expected);
}

}  // namespace

std::span<const KernelTable* const> kernel_levels() {
  static const std::vector<const KernelTable*> levels = [] {
    std::vector<const KernelTable*> compiled;
    for (const KernelTable* table : {generic_kernels, avx2_kernels, avx512_kernels}) {
      if (table) compiled.push_back(table);
    }
    return compiled;
  }();
  return levels;
}

const KernelTable& choose_level(std::string_view name) {
  const KernelTable* best = nullptr;
  std::string known;
  for (const KernelTable* table : kernel_levels()) {
    if (!table->supported()) continue;
    best = table;
    known += (known.empty() ? "" : ", ") + std::string(table->name);
    if (name == table->name) return *table;
  }
  if (name.empty()) return *best;
  throw std::invalid_argument("OSCAR_CPU: no SIMD level '" + std::string(name) +
                              "' here; this machine has: " + known);
}

std::string_view cpu_level() {
  return level().name;
}

void causal_attention(const AttentionProblem& p, float* o, float* lse) {
  check(p.tokens >= 0 && p.tokens < INT32_MAX, "causal_attention", "tokens must be in [0, 2^31)");
  check(p.group > 0 && p.dim_k > 0 && p.dim_v > 0, "causal_attention",
        "group, dim_k and dim_v must be positive");
  level().causal_attention(p, o, lse);
}

void cached_attention(const CachedAttentionProblem& problem, float* o, float* lse) {
  const AttentionProblem& p = problem.exact;
  check(p.tokens >= 0 && p.tokens < INT32_MAX, "cached_attention", "tokens must be in [0, 2^31)");
  check(p.group > 0 && p.dim_k > 0 && p.dim_v > 0, "cached_attention",
        "group, dim_k and dim_v must be positive");
  check(problem.sink >= 0 && problem.recent >= 0, "cached_attention", "sink and recent must not be negative");
  level().cached_attention(problem, o, lse);
}

void score_stats(const ScoreStatsProblem& p, const ScoreStatsResult& result) {
  check(p.tokens >= 0 && p.tokens < INT32_MAX, "score_stats", "tokens must be in [0, 2^31)");
  check(p.group > 0 && p.dim > 0, "score_stats", "group and dim must be positive");
  check(!p.queries || p.n_queries >= 0, "score_stats", "n_queries must not be negative");
  for (int64_t n = 0; p.queries && n < p.n_queries; ++n) {
    check(p.queries[n] >= (n > 0 ? p.queries[n - 1] : 0) && p.queries[n] < p.tokens, "score_stats",
          "queries must be sorted positions in [0, tokens)");
  }
  check(!p.v || (p.o && p.metric && p.dim_v > 0 && result.a && result.x), "score_stats",
        "values need o, metric, a positive dim_v, a and x");
  level().score_stats(p, result);
}

void diagnose(const DiagnoseProblem& p, const DiagnoseResult& result) {
  check(p.tokens >= 0 && p.tokens < INT32_MAX, "diagnose", "tokens must be in [0, 2^31)");
  check(p.first_query >= 0 && p.first_query <= p.tokens, "diagnose", "first_query must be in [0, tokens]");
  check(p.group > 0 && p.dim_k > 0 && p.dim_v > 0, "diagnose", "group, dim_k and dim_v must be positive");
  level().diagnose(p, result);
}

void add_gram(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* out) {
  level().add_gram(rows, stride, weights, n, dim, out);
}
void add_rows(const float* rows, int64_t stride, const float* weights, int64_t n, int dim, double* sum) {
  level().add_rows(rows, stride, weights, n, dim, sum);
}

void add_quadratic_gram(const QuadraticGram& p, double* gram, double* total) {
  check(p.n >= 0, "add_quadratic_gram", "n must not be negative");
  check(p.dim_k > 0 && p.dim_v > 0, "add_quadratic_gram", "dim_k and dim_v must be positive");
  level().add_quadratic_gram(p, gram, total);
}

void nearest_codeword(const float* rows, int64_t stride, int64_t n, int g, const float* codebook, int count,
                      uint16_t* index, int64_t index_stride, float* distance) {
  check(n >= 0, "nearest_codeword", "n must not be negative");
  check(g >= 1 && g <= 64, "nearest_codeword", "g must be in [1, 64]");
  check(count >= 1 && count <= 65536, "nearest_codeword", "count must be in [1, 65536]");
  level().nearest_codeword(rows, stride, n, g, codebook, count, index, index_stride, distance);
}

Status decode(const CacheFormat& format, const DecodeBatch& batch, const DecodeInputs& inputs,
              const DecodeOutputs& outputs) {
  const KernelTable* chosen;
  try {
    chosen = &level();
  } catch (const std::exception&) {
    return {"decode: OSCAR_CPU names no SIMD level of this machine"};
  }
  return decode_with(*chosen, format, batch, inputs, outputs);
}

namespace int2 {

void encode(const Rule& rule, const float* rows, int64_t n, uint8_t* codes, float* scale_zero) {
  check(rule.dim > 0 && rule.dim % 4 == 0, "int2::encode", "dim must be a positive multiple of 4");
  check(rule.groups > 0 && rule.dim % rule.groups == 0, "int2::encode", "groups must divide dim");
  level().int2_encode(rule, rows, n, codes, scale_zero);
}
void decode(int dim, int groups, const uint8_t* codes, const float* scale_zero, int64_t n, float* rows) {
  check(dim > 0 && dim % 4 == 0, "int2::decode", "dim must be a positive multiple of 4");
  check(groups > 0 && dim % groups == 0, "int2::decode", "groups must divide dim");
  level().int2_decode(dim, groups, codes, scale_zero, n, rows);
}

}  // namespace int2
}  // namespace oscar
