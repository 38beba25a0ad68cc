// Causal attention of one KV head of one sequence that reads its history from codes, as a server does.
//
// For query t, keys and values s in Hist(t) = { s : sink <= s <= t - recent } come from the codes, all others
// are exact; one softmax over both, its cap and sink logits those of `exact`. Otherwise as causal_attention.
#pragma once
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/code_rows.h"

namespace oscar {

struct CachedAttentionProblem {
  AttentionProblem exact;     // sizes, and the exact rows
  int64_t sink, recent;       // tokens, >= 0
  CodeRows k_codes, v_codes;  // (T, dim_k) and (T, dim_v), in the same basis as exact.k and exact.v
};

// One thread, which calls decode in order: no row outside [sink, T - recent), each of those once, none where
// sliding_window <= recent hides the history. lse may be nullptr. Scratch memory: packed copies of k and v
// and of their history as decoded. The result of a query depends on the rows that it sees and the SIMD level;
// codes that lose nothing give causal_attention's to the bit. All rows must be finite.
void cached_attention(const CachedAttentionProblem& problem, float* o, float* lse);
// Double throughout.
void cached_attention_reference(const CachedAttentionProblem& problem, float* o, float* lse);

}  // namespace oscar
