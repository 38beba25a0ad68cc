// Blocks of MR query rows x P keys: the scores stay in registers from the dot products to the row and column
// sums.

namespace oscar::OSCAR_LEVEL {
namespace {

// What the P keys of a panel are to the MR rows of a block; kMixed decides element by element.
enum class Keys { kHistory, kSink, kRecent, kMixed };

struct ScoreRows {  // one block
  float lse[MR];
  int32_t last[MR];     // position of the query; -1: padding
  int32_t first[MR];    // first visible key
  int32_t history[MR];  // last key of the history, not above `last`
};
struct ScoreSums {  // lanes of one block; -entropy
  float mass[MR][W], sink[MR][W], entropy[MR][W];
};

template <Keys kKeys>
void score_block(const float* q, const float* k, int dim, float scale, const ScoreRows& rows, int32_t key,
                 int32_t sink, ScoreSums& sums, float* u, float* w) {
  vf acc[MR][NR] = {};
  multiply<1, MR>(q, k, dim, acc);
  OSCAR_UNROLL
  for (int v = 0; v < NR; ++v) {
    vf u_sum = load(u + v * W), w_sum = load(w + v * W);
    const vi keys = lanes() + fill(key + v * W);
    OSCAR_UNROLL
    for (int i = 0; i < MR; ++i) {
      const vf x = larger(fma(acc[i][v], fill(scale), fill(-rows.lse[i])), fill(-87.0f));
      vf p = exponential(x);
      if constexpr (kKeys == Keys::kMixed) {
        p = (keys <= fill(rows.last[i])) & (keys >= fill(rows.first[i])) ? p : vf{};
      }
      store(sums.entropy[i], fma(p, x, load(sums.entropy[i])));
      if constexpr (kKeys == Keys::kHistory) {
        store(sums.mass[i], load(sums.mass[i]) + p);
        u_sum += p;
        w_sum = fma(p, p, w_sum);
      } else if constexpr (kKeys == Keys::kSink) {
        store(sums.sink[i], load(sums.sink[i]) + p);
      } else if constexpr (kKeys == Keys::kMixed) {
        const vi in_sink = keys < fill(sink);
        store(sums.sink[i], load(sums.sink[i]) + (in_sink ? p : vf{}));
        p = ~in_sink & (keys <= fill(rows.history[i])) ? p : vf{};
        store(sums.mass[i], load(sums.mass[i]) + p);
        u_sum += p;
        w_sum = fma(p, p, w_sum);
      }
    }
    store(u + v * W, u_sum);
    store(w + v * W, w_sum);
  }
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

  // A tile of query blocks stays in the first-level cache while the panels go by.
  const int64_t tile_blocks = upper(1, lower(16, 24576 / (4 * p.dim * MR)));
  Scratch<float> q(tile_blocks * MR * p.dim);
  Scratch<ScoreRows> rows(tile_blocks);
  Scratch<ScoreSums> sums(tile_blocks);
  Scratch<double> totals(tile_blocks * MR * 3);  // mass, sink, -entropy
  const auto flush = [&](int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b) {
      for (int i = 0; i < MR; ++i) {
        double* total_of_row = totals + (b * MR + i) * 3;
        total_of_row[0] += total(load(sums[b].mass[i]));
        total_of_row[1] += total(load(sums[b].sink[i]));
        total_of_row[2] += total(load(sums[b].entropy[i]));
      }
      sums[b] = ScoreSums{};
    }
  };

  for (int64_t row0 = 0; row0 < total_rows; row0 += tile_blocks * MR) {
    const int64_t tile_rows = lower(tile_blocks * MR, total_rows - row0), blocks = ceil_div(tile_rows, MR);
    std::memset(totals, 0, sizeof(double) * tile_blocks * MR * 3);
    for (int64_t r = 0; r < blocks * MR; ++r) {
      ScoreRows& block = rows[r / MR];
      const int64_t i = r % MR, t = r < tile_rows ? position(row0 + r) : -1, j = (row0 + r) % p.group;
      block.last[i] = static_cast<int32_t>(t);
      block.first[i] = static_cast<int32_t>(upper(0, t - window + 1));
      block.history[i] = static_cast<int32_t>(t - recent);
      block.lse[i] = t < 0 ? 0 : p.lse[j * p.lse_stride + t];
      float* out = q + r / MR * MR * p.dim + i;
      for (int d = 0; d < p.dim; ++d) out[d * MR] = t < 0 ? 0 : p.q[t * p.q_stride + j * p.dim + d];
    }
    const int64_t first_panel = upper(0, position(row0) - window + 1) / P,
                  last_panel = position(row0 + tile_rows - 1) / P;
    for (int64_t c = first_panel; c <= last_panel; ++c) {
      const int64_t key = c * P, last_key = key + P - 1;
      float u[P] = {}, w[P] = {};
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t low = rows[b].last[0], high = position(row0 + lower(b * MR + MR, tile_rows) - 1);
        if (key > high || last_key <= low - window) continue;
        const bool padded = b * MR + MR > tile_rows;
        const bool all_visible = !padded && last_key <= low && key > high - window;
        const auto run = all_visible && key >= sink && last_key <= low - recent ? score_block<Keys::kHistory>
                         : all_visible && last_key < sink                       ? score_block<Keys::kSink>
                         : all_visible && key >= sink && key > high - recent    ? score_block<Keys::kRecent>
                                                                                : score_block<Keys::kMixed>;
        run(q + b * MR * p.dim, k + c * p.dim * P, p.dim, p.scale, rows[b], static_cast<int32_t>(key),
            static_cast<int32_t>(sink), sums[b], u, w);
      }
      for (int64_t s = 0; s < lower(P, p.tokens - key); ++s) {
        result.u[key + s] += u[s];
        result.w[key + s] += w[s];
      }
      if (c % 32 == 31) flush(blocks);
    }
    flush(blocks);
    for (int64_t r = 0; r < tile_rows; ++r) {
      const int64_t out = (row0 + r) % p.group * count + (row0 + r) / p.group;
      result.mass[out] = static_cast<float>(totals[r * 3]);
      result.sink_mass[out] = static_cast<float>(totals[r * 3 + 1]);
      result.entropy[out] = static_cast<float>(-totals[r * 3 + 2]);
    }
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
