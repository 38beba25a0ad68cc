// The distances (v - o) G (v - o)^T = vGv + oGo - 2 v.(oG) of score_stats: one more product of rows and keys.
// Its panels are the values, which all heads share; only the rows -2 oG and the terms vGv depend on the head.
// Values and outputs are first moved by the mean value, so that the difference loses no more digits than it
// has to.

namespace oscar::OSCAR_LEVEL {
namespace {

struct OutputRows {          // one block
  float norm[MR];            // oGo
  const float* v_norms[MR];  // vGv of every key in the metric of the row's head
};
struct OutputBlock {
  const float *o, *v;  // -2 oG of the block (dim, MR), the panel of v (dim, P)
  int dim;
  const OutputRows* rows;
};

void output_distances(const OutputBlock& out, int32_t key, float (&distance)[MR][P]) {
  vf acc[MR][NR] = {};
  multiply<1, MR>(out.o, out.v, out.dim, acc);
  OSCAR_UNROLL
  for (int i = 0; i < MR; ++i) {
    const vf norm = fill(out.rows->norm[i]);
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) {
      const vf norms = load(out.rows->v_norms[i] + key + v * W) + norm;
      store(distance[i] + v * W, larger(vf{}, acc[i][v] + norms));
    }
  }
}

// G as blocks (dim, MR) of its rows. kHalf: what lies above the diagonal is added to what lies below it,
// which leaves xGx as it is.
template <bool kHalf>
void pack_metric(const float* g, int dim, float* blocks) {
  for (int e = 0; e < dim; ++e) {
    float* to = blocks + e / MR * MR * dim + e % MR;
    for (int d = 0; d < dim; ++d) {
      to[d * MR] = kHalf ? (d < e    ? g[e * dim + d] + g[d * dim + e]
                            : d == e ? g[e * dim + d]
                                     : 0)
                         : g[e * dim + d];
    }
  }
}

// norms = xGx of the P vectors x of a panel (dim, P); each(e, (P) row e of Gx) where the metric is whole.
template <bool kHalf, typename Each>
void map_panel(const float* metric, const float* panel, int dim, float* norms, Each each) {
  vf norm[NR] = {};
  for (int e0 = 0; e0 < dim; e0 += MR) {
    const int rows = dim - e0 < MR ? dim - e0 : MR;
    vf acc[MR][NR] = {};
    multiply<1, MR>(metric + e0 * dim, panel, kHalf ? e0 + rows : dim, acc);
    alignas(64) float mapped[MR][P];
    OSCAR_UNROLL
    for (int i = 0; i < MR; ++i) {
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) store(mapped[i] + v * W, acc[i][v]);
    }
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < NR; ++v)
        norm[v] = fma(load(mapped[i] + v * W), load(panel + (e0 + i) * P + v * W), norm[v]);
      each(e0 + i, mapped[i]);
    }
  }
  for (int v = 0; v < NR; ++v) store(norms + v * W, norm[v]);
}

// What of a problem's values and outputs its blocks need.
struct OutputTerms {
  Scratch<float> v;        // panels (dim_v, P)
  Scratch<float> v_norms;  // (H, panels * P), of the keys that are history to some query
  Scratch<float> o;        // blocks (dim_v, MR) of -2 oG, of the rows that have a history
  Scratch<float> o_norms;  // (rows of all blocks)

  OutputTerms(const ScoreStatsProblem& p, int64_t count, int64_t sink, int64_t recent)
      : v(p.v ? ceil_div(p.tokens, P) * P * p.dim_v : 0),
        v_norms(p.v ? ceil_div(p.tokens, P) * P * p.group : 0),
        o(p.v ? ceil_div(count * p.group, MR) * MR * p.dim_v : 0),
        o_norms(p.v ? ceil_div(count * p.group, MR) * MR : 0) {
    if (!p.v) return;
    const int dim = p.dim_v;
    const int64_t panels = ceil_div(p.tokens, P);
    Scratch<double> sum(dim);
    Scratch<float> mean(dim), metric(ceil_div(dim, MR) * MR * dim), panel(dim * P), norms(P);
    add_rows(p.v, p.v_stride, nullptr, p.tokens, dim, sum);
    for (int d = 0; d < dim; ++d) mean[d] = static_cast<float>(sum[d] / static_cast<double>(p.tokens));
    for (int64_t s = 0; s < p.tokens; ++s) {
      float* to = v + s / P * P * dim + s % P;
      for (int d = 0; d < dim; ++d) to[d * P] = p.v[s * p.v_stride + d] - mean[d];
    }
    const auto position = [&](int64_t n) { return p.queries ? int64_t{p.queries[n]} : n; };
    int64_t first = 0;
    while (first < count && position(first) < sink + recent) ++first;
    for (int j = 0; j < p.group; ++j) {
      const float* g = p.metric + int64_t{j} * dim * dim;
      pack_metric<true>(g, dim, metric);
      for (int64_t c = sink / P; c * P < p.tokens - recent; ++c)
        map_panel<true>(metric, v + c * P * dim, dim, v_norms + (j * panels + c) * P,
                        [](int, const float*) {});
      pack_metric<false>(g, dim, metric);
      for (int64_t n0 = first; n0 < count; n0 += P) {
        const int64_t rows = lower(P, count - n0);
        float* to[P];
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t row = (n0 + i) * p.group + j;
          to[i] = o + row / MR * MR * dim + row % MR;
          const float* from = p.o + position(n0 + i) * p.o_stride + int64_t{j} * dim;
          for (int d = 0; d < dim; ++d) panel[d * P + i] = from[d] - mean[d];
        }
        map_panel<false>(metric, panel, dim, norms, [&](int e, const float* mapped) {
          for (int64_t i = 0; i < rows; ++i) to[i][e * MR] = -2 * mapped[i];
        });
        for (int64_t i = 0; i < rows; ++i) o_norms[(n0 + i) * p.group + j] = norms[i];
      }
    }
  }
};

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
