// kernels/score_stats.h on a GPU: all KV heads of a layer in one call, arrays in device memory.
#pragma once
#include "kernels/decode.h"
#include "kernels/status.h"

namespace oscar::cuda {

// Strides are multiples of 8, arrays 16-byte aligned.
struct ScoreStatsBatch {
  int64_t tokens = 0;                    // T
  int kv_heads = 0, group = 0, dim = 0;  // dim: a multiple of 8 up to 256
  float scale = 1;
  int64_t sink = 0, recent = 0;
  int64_t sliding_window = 0;        // keys a query sees, itself included; 0: all
  FloatType type = FloatType::bf16;  // of q, k, v and o; f32 is rounded to bfloat16, which the products take
  const void* q = nullptr;           // q[t * q_stride + (h * group + j) * dim + i]
  int64_t q_stride = 0;
  const void* k = nullptr;  // k[t * k_stride + h * dim + i]
  int64_t k_stride = 0;
  const float* lse = nullptr;  // lse[(h * group + j) * lse_stride + t]
  int64_t lse_stride = 0;
  const int32_t* queries = nullptr;  // sorted positions of the queries to count, (n_queries); nullptr: all T
  int64_t n_queries = 0;
  float logit_cap = 0;  // 0: none

  const void* v = nullptr;  // v[t * v_stride + h * dim_v + i], of `type`; nullptr: no x and no a
  int64_t v_stride = 0;
  const void* o = nullptr;  // o[t * o_stride + (h * group + j) * dim_v + i], of `type`
  int64_t o_stride = 0;
  const float* metric = nullptr;  // (kv_heads * group, dim_v, dim_v) symmetric positive semidefinite
  int dim_v = 0;                  // a multiple of 8 up to 256
};

struct ScoreStatsOutputs {     // N = n_queries, or T
  float* mass = nullptr;       // (kv_heads * group, N)
  float* sink_mass = nullptr;  // (kv_heads * group, N)
  float* entropy = nullptr;    // (kv_heads * group, N) nats
  double* u = nullptr;         // (kv_heads, T), added to
  double* w = nullptr;         // (kv_heads, T), added to
  float* a = nullptr;          // (kv_heads * group, N); with values only, as x
  double* x = nullptr;         // (kv_heads, T), added to
};

// Bytes of scratch on the current device: copies of q and k (and of v and twice o) in bfloat16, 32 bytes a row of outputs and
// 8 to 12 bytes a key for every 2048 / group queries.
int64_t score_stats_workspace(const ScoreStatsBatch& batch);
// Asynchronous on `stream`, capturable, no allocation; the current device is the one score_stats_workspace() was asked for.
// Probabilities are float32 of products of bfloat16 that are summed in float32; sums over 64 keys or about 2048 queries are
// float32, sums of those exact or double. o G has the 16 bits of two bfloat16; a and x are within 1e-4 of their largest
// value. The same inputs give the same bytes, and values change no other sum. What is not a number makes its row's sums and
// its keys' sums the same.
Status score_stats(const ScoreStatsBatch& batch, const ScoreStatsOutputs& outputs, void* workspace,
                   void* stream);

}  // namespace oscar::cuda
