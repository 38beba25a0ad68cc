#include "libdump/sinks/tensor_sums.h"

#include <ATen/ATen.h>

#include "libdump/device_layers.h"

namespace oscar {
namespace {

// rows (T, heads * group, D) as (heads, group * T, D) float32.
at::Tensor by_head(const at::Tensor& rows, int64_t heads) {
  const int64_t d = rows.size(2);
  return rows.to(at::kFloat).permute({1, 0, 2}).reshape({heads, -1, d});
}

// (heads, D, D) float64 of rows (heads, N, D) with weights (heads, N) or undefined ones.
at::Tensor grams(const at::Tensor& rows, const at::Tensor& weights) {
  constexpr int64_t kBlock = 512;
  const int64_t heads = rows.size(0), n = rows.size(1), d = rows.size(2), blocks = (n + kBlock - 1) / kBlock;
  at::Tensor right = weights.defined() ? rows * weights.unsqueeze(2) : rows;
  const auto in_blocks = [&](const at::Tensor& x) {
    return at::constant_pad_nd(x, {0, 0, 0, blocks * kBlock - n}).reshape({heads * blocks, kBlock, d});
  };
  return at::bmm(in_blocks(rows).transpose(1, 2), in_blocks(right))
      .view({heads, blocks, d, d})
      .sum({1}, false, at::kDouble);
}

class Sums {
 public:
  Sums(const LayerShape& shape, const at::TensorOptions& options)
      : shape_(shape),
        offsets_(sum_offsets(shape)),
        values_(at::zeros({offsets_[kSumCount]}, options.dtype(at::kDouble))) {}
  void set(Sum sum, const at::Tensor& value) {
    const auto i = static_cast<size_t>(sum);
    values_.narrow(0, offsets_[i], offsets_[i + 1] - offsets_[i]).copy_(value.reshape({-1}));
  }
  // Of rows (heads, N, D).
  void moments(const at::Tensor& rows, const at::Tensor& weights, std::optional<Sum> total,
               std::optional<Sum> first, Sum second) {
    set(second, grams(rows, weights));
    if (total) set(*total, weights.sum({1}, false, at::kDouble));
    if (first)
      set(*first, (weights.defined() ? rows * weights.unsqueeze(2) : rows).sum({1}, false, at::kDouble));
  }
  const at::Tensor& values() const { return values_; }

 private:
  const LayerShape& shape_;
  std::array<int64_t, kSumCount + 1> offsets_;
  at::Tensor values_;
};

struct Scores {
  at::Tensor mass, sink_mass, entropy, a;  // (Hq, n) float32
  at::Tensor u, w, x;                      // (Hkv, T) float64
};

// The importances of kernels/score_stats.h, a block of queries at a time.
Scores scores_of(const TensorSumsInput& in, const at::Tensor& positions) {
  const LayerShape& s = in.shape;
  const int64_t tokens = in.rows.k.size(0), heads = s.kv_heads, group = s.group(), n = positions.size(0);
  const auto float32 = in.rows.lse.options(), float64 = float32.dtype(at::kDouble);
  Scores out{};
  for (at::Tensor* rows : {&out.mass, &out.sink_mass, &out.entropy, &out.a})
    *rows = at::empty({s.q_heads, n}, float32);
  for (at::Tensor* keys : {&out.u, &out.w, &out.x}) *keys = at::zeros({heads, tokens}, float64);
  const at::Tensor v = by_head(in.rows.v, heads).unsqueeze(1);                     // (Hkv, 1, T, Dv)
  const at::Tensor metric = in.rows.metric.view({heads, group, s.dim_v, s.dim_v});
  const at::Tensor v_metric = at::matmul(v, metric);                               // (Hkv, G, T, Dv)
  const at::Tensor v_power = (v_metric * v).sum(3).unsqueeze(2);                   // (Hkv, G, 1, T)
  const at::Tensor keys = at::arange(tokens, positions.options());
  on_device::each_score_block(in.rows.q, in.rows.k, positions, s, [&](const on_device::ScoreBlock& b) {
    const at::Tensor t = positions.narrow(0, b.first, b.count);
    const at::Tensor lse = in.rows.lse.index_select(1, t).view({heads, group, b.count, 1});
    const at::Tensor log_p = b.logits - lse;
    const at::Tensor p = at::exp(log_p).mul_(b.visible);
    const at::Tensor history = b.visible.logical_and(keys.ge(in.windows.sink))
                                   .logical_and(keys.unsqueeze(0).le(t.unsqueeze(1) - in.windows.recent));
    const auto rows = [&](at::Tensor& to, const at::Tensor& of_keys) {
      to.narrow(1, b.first, b.count).copy_(of_keys.sum(3).view({s.q_heads, b.count}));
    };
    rows(out.entropy, at::xlogy(p, p).neg_());
    rows(out.sink_mass, p.narrow(3, 0, std::min(in.windows.sink, tokens)));
    const at::Tensor counted = p * history;
    rows(out.mass, counted);
    out.u.add_(counted.sum({1, 2}, false, at::kDouble));
    const at::Tensor squares = counted.square();
    out.w.add_(squares.sum({1, 2}, false, at::kDouble));
    const at::Tensor o = in.rows.o.index_select(0, t).to(at::kFloat).permute({1, 0, 2}).view(
        {heads, group, b.count, s.dim_v});
    const at::Tensor o_metric = at::matmul(o, metric);
    const at::Tensor distance =
        (v_power + (o_metric * o).sum(3, true) - 2 * at::matmul(o_metric, v.transpose(2, 3))).clamp_min_(0);
    const at::Tensor moved = (b.slope.defined() ? squares * b.slope.square() : squares) * distance;
    rows(out.a, moved);
    out.x.add_(moved.sum({1, 2}, false, at::kDouble));
  });
  return out;
}

// Of the queries that have a history, the same for every head.
void add_stream(Sums& sums, const TensorSumsInput& in, const at::Tensor& positions) {
  const at::Tensor counts = positions.ge(in.windows.sink + in.windows.recent);
  const at::Tensor power = in.rows.hidden.index_select(0, positions).to(at::kDouble).square().sum(1);
  const at::Tensor sum = power.clamp_min(1e-30).reciprocal().mul(counts).sum();
  sums.set(Sum::stream, sum.expand({in.shape.kv_heads}));
  sums.set(Sum::stream_queries, counts.sum().expand({in.shape.kv_heads}));
}

}  // namespace

std::array<int64_t, kSumCount + 1> sum_offsets(const LayerShape& shape) {
  std::array<int64_t, kSumCount + 1> offsets{};
  for (size_t i = 0; i < kSumCount; ++i)
    offsets[i + 1] = offsets[i] + shape.kv_heads * size_of(sum_table()[i].sum, shape);
  return offsets;
}

TensorSums tensor_sums(const TensorSumsInput& in) {
  const LayerShape& s = in.shape;
  const int64_t heads = s.kv_heads, tokens = in.rows.k.size(0);
  Sums sums(s, in.rows.lse.options());
  const at::Tensor q = by_head(in.rows.q, heads), k = by_head(in.rows.k, heads), v = by_head(in.rows.v, heads);
  sums.moments(q, {}, {}, {}, Sum::qq);
  sums.moments(by_head(in.rows.o, heads), {}, {}, {}, Sum::oo);
  sums.moments(k, {}, {}, Sum::k_sum, Sum::kk);
  sums.moments(v, {}, {}, Sum::v_sum, Sum::vv);
  if (!in.scores) return {sums.values(), {}, {}, {}};

  const at::Tensor positions = in.queries.defined()
                                   ? in.queries.to(at::kLong)
                                   : at::arange(tokens, in.rows.lse.options().dtype(at::kLong));
  const Scores scores = scores_of(in, positions);
  const at::Tensor counted = in.queries.defined() ? by_head(in.rows.q.index_select(0, positions), heads) : q;
  const auto of_head = [&](const at::Tensor& rows) { return rows.reshape({heads, -1}); };
  sums.moments(counted, of_head(scores.mass), Sum::mass, {}, Sum::qq_mass);
  sums.moments(counted, of_head(scores.a), Sum::out, {}, Sum::qq_out);
  sums.set(Sum::entropy, of_head(scores.entropy).sum({1}, false, at::kDouble));
  sums.set(Sum::sink_mass, of_head(scores.sink_mass).sum({1}, false, at::kDouble));
  sums.moments(k, scores.u.to(at::kFloat), Sum::u, Sum::uk, Sum::ukk);
  sums.moments(v, scores.w.to(at::kFloat), Sum::w, Sum::wv, Sum::wvv);
  sums.moments(k, scores.x.to(at::kFloat), Sum::x, Sum::xk, Sum::xkk);
  add_stream(sums, in, positions);
  return {sums.values(), scores.u, scores.w, scores.x};
}

at::Tensor proxy_sums(const LayerShape& shape, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& sigma_q) {
  // By blocks of rows, since a product with one output a head occupies a corner of a GPU.
  constexpr int64_t kBlock = 256;
  const int64_t heads = shape.kv_heads, tokens = k.size(0), blocks = (tokens + kBlock - 1) / kBlock;
  const auto padded = [&](const at::Tensor& rows) {  // (Hkv, blocks * kBlock, D)
    at::Tensor all = at::empty({heads, blocks * kBlock, rows.size(2)}, rows.options().dtype(at::kDouble));
    all.narrow(1, 0, tokens).copy_(rows.permute({1, 0, 2}));
    all.narrow(1, tokens, blocks * kBlock - tokens).zero_();
    return all;
  };
  const at::Tensor keys = padded(k), values = padded(v);
  // Sigma_Q is positive semidefinite: a negative value is rounding.
  const at::Tensor c = at::bmm(keys, sigma_q).mul_(keys).sum(2).clamp_min_(0);
  const auto cut = [&](const at::Tensor& x) { return x.view({heads * blocks, kBlock, shape.dim_v}); };
  const at::Tensor parts = at::bmm(cut(values * c.unsqueeze(2)).transpose(1, 2), cut(values));
  const at::Tensor sum = parts.view({heads, blocks, shape.dim_v, shape.dim_v}).sum(1);
  return at::cat({sum.view({-1}), c.sum(1)});
}

}  // namespace oscar
