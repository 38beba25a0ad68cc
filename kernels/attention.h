// Causal attention of one KV head of one sequence: the heaviest kernel of the calibration forward.
//
//   l[j,t,s] = scale * q[t,j].k[s]               s <= t (and s > t - sliding_window where there is one)
//              or cap * tanh(that / cap), where there is a logit_cap
//   lse[j,t] = log sum over s of exp(l[j,t,s])   natural logarithm; with sink_logits exp(sink_logits[j]) is in
//              the sum too: a share of the softmax that goes to no value
//   o[t,j]   = sum over s of exp(l[j,t,s] - lse[j,t]) v[s]
#pragma once
#include <cstdint>

namespace oscar {

struct AttentionProblem {
  int64_t tokens;  // T
  int group;       // H query heads share this KV head
  int dim_k, dim_v;
  float scale;
  int64_t sliding_window;  // keys a query sees, itself included; 0: all
  const float* q;          // q[t * q_stride + j * dim_k + i]
  int64_t q_stride;
  const float* k;  // k[t * k_stride + i]
  int64_t k_stride;
  const float* v;  // v[t * v_stride + i]
  int64_t v_stride;
  int64_t o_stride;    // o[t * o_stride + j * dim_v + i]
  int64_t lse_stride;  // lse[j * lse_stride + t]
  float logit_cap = 0;                 // 0: none
  const float* sink_logits = nullptr;  // (group), finite; nullptr: none
};

// One thread; scratch memory is a packed copy of k and v and a few tiles. Every query is summed in an order of its own:
// its result depends on the rows that it sees and the SIMD level, nothing else. q, k and v must be finite: what a NaN
// spoils is not only the queries that see it. Reference: double throughout.
void causal_attention(const AttentionProblem& problem, float* o, float* lse);
void causal_attention_reference(const AttentionProblem& problem, float* o, float* lse);

}  // namespace oscar
