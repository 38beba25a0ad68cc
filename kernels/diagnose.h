// What attention loses when the history of the cache is read from codes: one KV head of one probe sequence.
//
// Everything is in the cache's own basis: q, k and v come in already transformed (k R, q R^-T, v R), so that
// the kernel reads codes as a server does, and the exact rows of the sink and recent windows beside them.
// For query t, keys s in Hist(t) = { s : sink <= s <= t - recent } are read from the codes, all others are exact.
#pragma once
#include <cstdint>

#include "kernels/code_rows.h"

namespace oscar {

struct DiagnoseProblem {
  int64_t tokens;          // T
  int64_t first_query;     // queries t >= first_query are measured, T - first_query of them
  int group;               // H query heads share this KV head
  int dim_k, dim_v;
  float scale;
  int64_t sink, recent;
  int64_t sliding_window;  // 0: all
  const float* q;          // (T, H, dim_k), q[t * q_stride + j * dim_k + i]
  int64_t q_stride;
  const float* k;          // (T, dim_k) contiguous
  const float* v;          // (T, dim_v) contiguous
  CodeRows k_codes, v_codes;
  float logit_cap = 0;                 // as in kernels/attention.h; 0: none
  const float* sink_logits = nullptr;  // (H), in the softmax of both p and p^; nullptr: none
};

// Per measured query n = t - first_query and head j; caller's memory, all overwritten. p: exact softmax, p^: with k^.
// l is what the softmax takes: scale q.k, after the cap where there is one. A sink logit is one outcome more of p and
// p^ in the KL, the same logit in both; it is no key, and never the argmax.
struct DiagnoseResult {
  double* kl;              // (H, N) KL(p || p^), nats
  uint8_t* top1;           // (H, N) 1 where argmax p == argmax p^ (the lowest position wins ties)
  double* logit_error;     // (H, N) sum over visible s of (l - l^)^2
  double* logit_power;     // (H, N) sum over visible s of l^2
  float* o;                // (N, H, dim_v) p  V    exact
  float* o_codes;          // (N, H, dim_v) p^ V^   both quantised
  float* o_keys;           // (N, H, dim_v) p^ V    keys only
  float* o_values;         // (N, H, dim_v) p  V^   values only
};

// OpenMP over query tiles; every query is summed in one order, so the result does not depend on the number of threads.
void diagnose(const DiagnoseProblem& problem, const DiagnoseResult& result);
// Double throughout, two passes over a row of scores.
void diagnose_reference(const DiagnoseProblem& problem, const DiagnoseResult& result);

}  // namespace oscar
