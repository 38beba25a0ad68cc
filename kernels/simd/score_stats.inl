// Blocks of MR query rows x P keys: the scores stay in registers from the dot products to the row and column
// sums.

namespace oscar::OSCAR_LEVEL {
namespace {

// What the P keys of a panel are to the MR rows of a block; kMixed decides element by element.
enum class Keys { kHistory, kSink, kRecent, kMixed };

struct ScoreRows {          // one block
  int64_t lowest, highest;  // positions of its first and last query
  bool full;                // no padding
  float minus_lse[MR];
  int32_t last[MR];     // position of the query; -1: padding
  int32_t first[MR];    // first visible key
  int32_t history[MR];  // last key of the history, not above `last`
};
struct ScoreSums {  // lanes of one block; -entropy
  float mass[MR][W], sink[MR][W], entropy[MR][W], a[MR][W];
};
struct ScoreColumns {  // one panel
  float u[P], w[P], x[P];
};

template <Keys kKeys, bool kOutput, bool kCapped>
void score_block(const float* q, const float* k, const ScoreStatsProblem& problem, const ScoreRows& rows,
                 int32_t key, int32_t sink, ScoreSums& sums, ScoreColumns& columns, const OutputBlock& out) {
  alignas(64) float distance[kOutput ? MR : 1][P];
  if constexpr (kOutput) output_distances(out, key, distance);
  constexpr bool kMixed = kKeys == Keys::kMixed, kHistory = kMixed || kKeys == Keys::kHistory;
  vf scores[MR][NR];
  {
    vf acc[MR][NR] = {};
    multiply<1, MR>(q, k, problem.dim, acc);
    OSCAR_UNROLL
    for (int i = 0; i < MR; ++i) {
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) {
        scores[i][v] = kCapped ? acc[i][v] * fill(problem.scale)
                               : fma(acc[i][v], fill(problem.scale), fill(rows.minus_lse[i]));
      }
    }
    if constexpr (kCapped) {
      for (int i = 0; i < MR; ++i) {
        soft_cap(scores[i], problem.logit_cap);
        for (int v = 0; v < NR; ++v) scores[i][v] += fill(rows.minus_lse[i]);
      }
    }
  }
  vf u_sum[NR], w_sum[NR], x_sum[NR];
  OSCAR_UNROLL
  for (int v = 0; v < NR; ++v) {
    u_sum[v] = load(columns.u + v * W);
    w_sum[v] = load(columns.w + v * W);
    if constexpr (kOutput) x_sum[v] = load(columns.x + v * W);
  }
  OSCAR_UNROLL
  for (int i = 0; i < MR; i += 2) {
    vf x[2 * NR], p[2 * NR];
    OSCAR_UNROLL
    for (int n = 0; n < 2 * NR; ++n) x[n] = larger(fill(kLowest), scores[i + n / NR][n % NR]);
    exponentials(x, p);
    OSCAR_UNROLL
    for (int r = i; r < i + 2; ++r) {
      vf mass{}, sink_mass{}, entropy{}, a{};
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) {
        const int n = (r - i) * NR + v;
        const vi keys = lanes() + fill(key + v * W);
        if constexpr (kMixed)
          p[n] = ((keys <= fill(rows.last[r])) & (keys >= fill(rows.first[r]))) ? p[n] : vf{};
        entropy = fma(p[n], x[n], entropy);
        if constexpr (kKeys == Keys::kSink) sink_mass += p[n];
        if constexpr (kMixed) {
          sink_mass += keys < fill(sink) ? p[n] : vf{};
          p[n] = ((keys >= fill(sink)) & (keys <= fill(rows.history[r]))) ? p[n] : vf{};
        }
        if constexpr (kHistory) {
          mass += p[n];
          u_sum[v] += p[n];
          w_sum[v] = fma(p[n], p[n], w_sum[v]);
        }
        if constexpr (kOutput) {
          vf share = p[n] * p[n] * load(distance[r] + v * W);
          if constexpr (kCapped) {
            const vf tanh = (x[n] - fill(rows.minus_lse[r])) * fill(1 / problem.logit_cap),
                     slope = fill(1.0f) - tanh * tanh;
            share = share * slope * slope;
          }
          x_sum[v] += share;
          a += share;
        }
      }
      store(sums.entropy[r], load(sums.entropy[r]) + entropy);
      if constexpr (kHistory) store(sums.mass[r], load(sums.mass[r]) + mass);
      if constexpr (kOutput) store(sums.a[r], load(sums.a[r]) + a);
      if constexpr (kMixed || kKeys == Keys::kSink) store(sums.sink[r], load(sums.sink[r]) + sink_mass);
    }
  }
  if constexpr (kHistory) {
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) {
      store(columns.u + v * W, u_sum[v]);
      store(columns.w + v * W, w_sum[v]);
      if constexpr (kOutput) store(columns.x + v * W, x_sum[v]);
    }
  }
}

template <bool kCapped>
auto block_of(Keys keys, bool output) {
  return keys == Keys::kHistory  ? output ? score_block<Keys::kHistory, true, kCapped>
                                          : score_block<Keys::kHistory, false, kCapped>
          : keys == Keys::kSink ? score_block<Keys::kSink, false, kCapped>
         : keys == Keys::kRecent ? score_block<Keys::kRecent, false, kCapped>
         : output                ? score_block<Keys::kMixed, true, kCapped>
                                 : score_block<Keys::kMixed, false, kCapped>;
}

void score_stats(const ScoreStatsProblem& problem, const ScoreStatsResult& result) {
  const auto& p = problem;
  const FlushDenormals guard;
  const int64_t count = p.queries ? p.n_queries : p.tokens, total_rows = count * p.group;
  const int64_t window = p.sliding_window > 0 ? p.sliding_window : p.tokens;
  const int64_t sink = lower(upper(p.sink, 0), p.tokens), recent = lower(upper(p.recent, 0), p.tokens + 1);
  const auto position = [&](int64_t row) {
    return p.queries ? int64_t{p.queries[row / p.group]} : row / p.group;
  };

  const int64_t panels = ceil_div(p.tokens, P);
  Scratch<float> k(panels * p.dim * P);
  for (int64_t c = 0; c < panels; ++c) {
    pack_panel(p.k + c * P * p.k_stride, p.k_stride, lower(P, p.tokens - c * P), p.dim, k + c * p.dim * P);
  }
  const OutputTerms output(p, count, sink, recent);

  // A tile of query blocks stays in the first-level cache while the panels go by.
  const int64_t tile_blocks = upper(1, lower(16, 49152 / (4 * p.dim * MR)));
  Scratch<float> q(tile_blocks * MR * p.dim);
  Scratch<ScoreRows> rows(tile_blocks);
  Scratch<ScoreSums> sums(tile_blocks);
  Scratch<OutputRows> output_rows(tile_blocks);
  Scratch<double> u_total(panels * P), w_total(panels * P), x_total(panels * P);
  Scratch<double> totals(tile_blocks * MR * 4);  // mass, sink, -entropy, a
  const auto flush = [&](int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b) {
      for (int i = 0; i < MR; ++i) {
        double* total_of_row = totals + (b * MR + i) * 4;
        total_of_row[0] += total(load(sums[b].mass[i]));
        total_of_row[1] += total(load(sums[b].sink[i]));
        total_of_row[2] += total(load(sums[b].entropy[i]));
        total_of_row[3] += total(load(sums[b].a[i]));
      }
      sums[b] = ScoreSums{};
    }
  };

  for (int64_t row0 = 0; row0 < total_rows; row0 += tile_blocks * MR) {
    const int64_t tile_rows = lower(tile_blocks * MR, total_rows - row0), blocks = ceil_div(tile_rows, MR);
    std::memset(totals, 0, sizeof(double) * tile_blocks * MR * 4);
    for (int64_t r = 0; r < blocks * MR; ++r) {
      ScoreRows& block = rows[r / MR];
      const int64_t i = r % MR, t = r < tile_rows ? position(row0 + r) : -1, j = (row0 + r) % p.group;
      block.last[i] = static_cast<int32_t>(t);
      block.first[i] = static_cast<int32_t>(upper(0, t - window + 1));
      block.history[i] = static_cast<int32_t>(t - recent);
      block.minus_lse[i] = t < 0 ? 0 : -p.lse[j * p.lse_stride + t];
      float* out = q + r / MR * MR * p.dim + i;
      for (int d = 0; d < p.dim; ++d) out[d * MR] = t < 0 ? 0 : p.q[t * p.q_stride + j * p.dim + d];
      if (!p.v) continue;
      output_rows[r / MR].norm[i] = output.o_norms[row0 + r];
      output_rows[r / MR].v_norms[i] = output.v_norms + j * panels * P;
    }
    for (int64_t b = 0; b < blocks; ++b) {
      rows[b].lowest = rows[b].last[0];
      rows[b].highest = position(row0 + lower(b * MR + MR, tile_rows) - 1);
      rows[b].full = b * MR + MR <= tile_rows;
    }
    const int64_t first_panel = upper(0, position(row0) - window + 1) / P,
                  last_panel = position(row0 + tile_rows - 1) / P;
    for (int64_t c = first_panel; c <= last_panel; ++c) {
      const int64_t key = c * P, last_key = key + P - 1;
      ScoreColumns columns{};
      const float* panel = k + c * p.dim * P;
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t low = rows[b].lowest, high = rows[b].highest;
        if (key > high || last_key <= low - window) continue;
        const bool all_visible = rows[b].full && last_key <= low && key > high - window;
        const bool to_output = p.v && last_key >= sink && key <= high - recent;  // some history
        const Keys keys = all_visible && key >= sink && last_key <= low - recent ? Keys::kHistory
                          : all_visible && last_key < sink                       ? Keys::kSink
                          : all_visible && key >= sink && key > high - recent    ? Keys::kRecent
                                                                                 : Keys::kMixed;
        const auto run = p.logit_cap > 0 ? block_of<true>(keys, to_output) : block_of<false>(keys, to_output);
        run(q + b * MR * p.dim, panel, p, rows[b], static_cast<int32_t>(key), static_cast<int32_t>(sink),
            sums[b], columns,
            {output.o + (row0 + b * MR) * p.dim_v, output.v + key * p.dim_v, p.dim_v, output_rows + b});
      }
      for (int s = 0; s < P; ++s) {
        u_total[key + s] += columns.u[s];
        w_total[key + s] += columns.w[s];
        x_total[key + s] += columns.x[s];
      }
      if (c % 32 == 31) flush(blocks);
    }
    flush(blocks);
    for (int64_t r = 0; r < tile_rows; ++r) {
      const int64_t out = (row0 + r) % p.group * count + (row0 + r) / p.group;
      result.mass[out] = static_cast<float>(totals[r * 4]);
      result.sink_mass[out] = static_cast<float>(totals[r * 4 + 1]);
      result.entropy[out] = static_cast<float>(-totals[r * 4 + 2]);
      if (p.v) result.a[out] = static_cast<float>(totals[r * 4 + 3]);
    }
  }
  for (int64_t t = 0; t < p.tokens; ++t) {
    result.u[t] += u_total[t];
    result.w[t] += w_total[t];
    if (p.v) result.x[t] += x_total[t];
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
