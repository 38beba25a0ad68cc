// Row and column sums of causal attention probabilities, one KV head of one sequence, never a T x T matrix.
//
//   p[j,t,s] = exp(scale * q[t,j].k[s] - lse[j,t])           s <= t (and s > t - sliding_window where there is one)
//   Hist(t)  = { s : sink <= s <= t - recent }               the part of the cache that is quantised
//   mass[j,t] = sum over s in Hist(t) of p[j,t,s]             history mass of a query
//   u[s]      = sum over j, t with s in Hist(t) of p[j,t,s]   key importance
//   w[s]      = the same sum of p[j,t,s]^2                    value importance
// and, where values are given, with the attention output o[j,t] and the metric G_j of a query head:
//   A[j,t,s]  = (c p[j,t,s])^2 (v[s] - o[j,t]) G_j (v[s] - o[j,t])^T
//   x[s]      = sum over j, t with s in Hist(t) of A[j,t,s]   output importance of a key
//   a[j,t]    = sum over s in Hist(t) of A[j,t,s]             output sensitivity of a query
//
// c = 1. With a logit_cap p = exp(cap tanh(scale q.k / cap) - lse), and c = 1 - tanh^2(scale q.k / cap) is by how much an
// error of scale q.k moves what the softmax takes. Sink logits (kernels/attention.h) are in lse and o, and nowhere else: p
// sums to less than 1, and the entropy is of the keys' part of it.
//
// The log-sum-exp comes from the attention that ran before (LibTorch returns it), so one pass over the scores is enough.
#pragma once
#include <cstdint>

namespace oscar {

struct ScoreStatsProblem {
  int64_t tokens;            // T
  int group;                 // H query heads share this KV head
  int dim;                   // D
  float scale;
  int64_t sink, recent;      // S0, W
  int64_t sliding_window;    // keys a query sees, itself included; 0: all
  const float* q;            // q[t * q_stride + j * D + i], post-RoPE
  int64_t q_stride;
  const float* k;            // k[t * k_stride + i], post-RoPE
  int64_t k_stride;
  const float* lse;          // lse[j * lse_stride + t]
  int64_t lse_stride;
  const int32_t* queries;    // sorted positions of the queries to count, (n_queries); nullptr: all T
  int64_t n_queries;

  const float* v = nullptr;       // v[t * v_stride + i]; nullptr: no x and no a
  int64_t v_stride = 0;
  const float* o = nullptr;       // o[t * o_stride + j * dim_v + i], the exact attention over every visible key
  int64_t o_stride = 0;
  const float* metric = nullptr;  // (H, Dv, Dv) G_j, symmetric positive semidefinite
  int dim_v = 0;                  // Dv
  float logit_cap = 0;            // 0: none
};

struct ScoreStatsResult {    // caller's memory; rows for query n of `queries` (or t), not for skipped ones
  float* mass;               // (H, n_queries)
  float* sink_mass;          // (H, n_queries) mass on the first `sink` keys
  float* entropy;            // (H, n_queries) -sum p log p over every visible key, nats
  double* u;                 // (T), added to
  double* w;                 // (T), added to
  float* a = nullptr;        // (H, n_queries); with values only, as x
  double* x = nullptr;       // (T), added to
};

// One thread, no allocation proportional to T * T. The SIMD version is chosen for the machine at run time; its result does
// not depend on the number of threads because it uses one. Values change no other sum, by not one bit. Reference: double
// throughout.
void score_stats(const ScoreStatsProblem& problem, const ScoreStatsResult& result);
void score_stats_reference(const ScoreStatsProblem& problem, const ScoreStatsResult& result);

}  // namespace oscar
