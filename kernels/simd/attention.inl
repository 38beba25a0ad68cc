// One source of rows, or two: the exact ones and those decoded from codes.

namespace oscar::OSCAR_LEVEL {
namespace {

void cached_attention(const CachedAttentionProblem& problem, float* o, float* lse) {
  const AttentionProblem& p = problem.exact;
  if (p.tokens == 0) return;
  const int64_t window = p.sliding_window > 0 ? lower(p.sliding_window, p.tokens) : p.tokens;
  const int64_t low = lower(problem.sink, p.tokens), recent = lower(problem.recent, p.tokens + 1);
  const int64_t high = recent < window ? p.tokens - recent : 0;  // [low, high) is history to some query
  const int64_t panels = ceil_div(p.tokens, P), value_rows = panels * P;
  const int64_t size_k = value_rows * p.dim_k, size_v = value_rows * ceil_div(p.dim_v, P) * P;
  Scratch<float> k(size_k), v(size_v);
  pack_keys(p.k, p.k_stride, 0, p.tokens, p.dim_k, k);
  pack_values(p.v, p.v_stride, 0, p.tokens, p.dim_v, value_rows, v);
  if (low >= high) {
    attend_all(p, {k, k, v, v, value_rows, 0, p.tokens + 1, window}, o, lse);
    return;
  }
  Scratch<float> k_codes(size_k), v_codes(size_v), decoded(kDecoded * upper(p.dim_k, p.dim_v));
  for (int64_t s = low, n; s < high; s += n) {
    n = lower(kDecoded - s % kDecoded, high - s);
    problem.k_codes.decode(problem.k_codes.self, s, n, decoded);
    pack_keys(decoded, p.dim_k, s, n, p.dim_k, k_codes);
    problem.v_codes.decode(problem.v_codes.self, s, n, decoded);
    pack_values(decoded, p.dim_v, s, n, p.dim_v, value_rows, v_codes);
  }
  attend_all(p, {k, k_codes, v, v_codes, value_rows, low, recent, window}, o, lse);
}

void causal_attention(const AttentionProblem& problem, float* o, float* lse) {
  cached_attention({problem, 0, problem.tokens + 1, {}, {}}, o, lse);
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
