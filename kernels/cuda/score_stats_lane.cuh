// Internal: what a lane of score_stats_kernel() adds up, element by element.
#pragma once
#include "kernels/cuda/score_stats_tile.cuh"

namespace oscar::cuda {

// The two rows of a tile that a lane has. Keys of a piece relative to the lane's first, 8 i + c: visible within
// (below, visible], sink before `sink`, history within [sink, history] of those.
struct StatsRows {
  float offset[2];  // lse * log2 e
  float mass[2], entropy[2], sink_mass[2], sensitivity[2];
  OSCAR_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) mass[r] = entropy[r] = sink_mass[r] = sensitivity[r] = 0;
  }
};

template <bool kCap, bool kValues>
struct StatsLane {
  static constexpr int kPieces = stats_pieces(kValues);
  float u[kPieces][8][2] = {}, w[kPieces][8][2] = {}, x[kValues ? 8 : 1][2] = {};

  // Nothing of the piece is masked. squares, with values: p^2.
  OSCAR_DEVICE void add_plain(const float (&d)[32], float (&squares)[32], int piece, float scale,
                              StatsRows& rows) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2, c = e % 2;
        const float y = fmaf(d[4 * i + e], scale, -rows.offset[r]), p = exp2_approx(y);
        rows.mass[r] += p;
        rows.entropy[r] = fmaf(p, y, rows.entropy[r]);
        u[piece][i][c] += p;
        w[piece][i][c] = fmaf(p, p, w[piece][i][c]);
        if constexpr (kValues) squares[4 * i + e] = p * p;
      }
    }
  }
  // base: the lane's first key. squares: (c p)^2 in the history and 0 elsewhere.
  OSCAR_DEVICE void add_masked(const StatsArguments& a, const float (&d)[32], float (&squares)[32], int piece,
                               float scale, int base, const int (&times)[2], StatsRows& rows) {
    const int sink = static_cast<int>(a.in.sink) - base;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int visible = times[r] - base, below = visible - static_cast<int>(a.in.sliding_window),
                history = visible - static_cast<int>(a.in.recent);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int s = 8 * i + c;
          const float score = d[4 * i + 2 * r + c];
          float y = fmaf(score, scale, -rows.offset[r]), slope = 1;
          if constexpr (kCap) {
            const float t = tanhf(score * a.in.scale / a.in.logit_cap);
            y = fmaf(a.in.logit_cap * kLog2e, t, -rows.offset[r]);
            slope = fmaf(-t, t, 1.f);
          }
          const float p = exp2_approx(y);
          const bool is_visible = s <= visible && s > below, is_sink = is_visible && s < sink,
                     is_history = is_visible && s >= sink && s <= history;
          if (is_visible) rows.entropy[r] = fmaf(p, y, rows.entropy[r]);
          if (is_sink) rows.sink_mass[r] += p;
          if (is_history) {
            rows.mass[r] += p;
            u[piece][i][c] += p;
            w[piece][i][c] = fmaf(p, p, w[piece][i][c]);
          }
          if constexpr (kValues) squares[4 * i + 2 * r + c] = is_history ? slope * p * (slope * p) : 0.f;
        }
      }
    }
  }
  // products: y.v; value_norms: of the lane's first key.
  OSCAR_DEVICE void add_values(const float (&squares)[32], const float (&products)[32],
                               const float* value_norms, const float* output_norms, StatsRows& rows) {
    const float output_norm[2] = {output_norms[0], output_norms[8]};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 norms = *reinterpret_cast<const float2*>(value_norms + 8 * i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2, c = e % 2;
        const float distance =
            max_or_nan(fmaf(-2.f, products[4 * i + e], (c ? norms.y : norms.x) + output_norm[r]), 0.f);
        rows.sensitivity[r] = fmaf(squares[4 * i + e], distance, rows.sensitivity[r]);
        x[i][c] = fmaf(squares[4 * i + e], distance, x[i][c]);
      }
    }
  }
};

}  // namespace oscar::cuda
