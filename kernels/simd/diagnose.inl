// Streaming attention, twice over the same tile: p from exact keys, p^ from the codes, each with its own
// running maximum.
//
// Rows are (query, head) pairs in order of time, MR a block, kBlocks a tile; keys go by in tiles of kKeys.
// Both the exact and the decoded K and V are packed once per call: K as panels (dim_k, P), V as panels
// (kKeys, P) per key tile. Six unnormalised outputs: history and window apart, so that no row of V depends on
// the query:
//   kPV kPVc (weights p, history; V and codes)   kCV kCVc (weights p^)   kPWindow kCWindow (exact V of the
//   windows)

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int kKeys = 64, kBlocks = 48 / MR, kRows = kBlocks * MR;
constexpr float kMasked = -1e30f;
enum Output { kPV, kPVc, kCV, kCVc, kPWindow, kCWindow, kOutputs };
// What a tile of keys is to a block of rows. kEdge: windows only, partly visible; kMixed: history and
// windows.
enum class Tile : uint8_t { kSkip, kHistory, kWindow, kEdge, kMixed };
constexpr bool has_history(Tile tile) {
  return tile == Tile::kHistory || tile == Tile::kMixed;
}

struct Packed {  // shared by all threads, read only
  int64_t panels_v;
  const float *k, *k_codes, *v, *v_codes;
};

struct Row {
  int32_t last = -1, first = 0, history = -1;  // keys: [first, last] visible, history up to `history`
  float top = kMasked, top_codes = kMasked;    // running maxima
  int64_t argmax = -1, argmax_codes = -1;
  double sum = 0, sum_codes = 0;  // of exp(l - top)
  double moment = 0;              // of exp(l - top) (l - l^)
  double error = 0, power = 0;
};

struct Workspace {
  Scratch<float> q, scores, scores_codes, window, window_codes, out;
  Row rows[kRows];
  Workspace(int dim_k, int64_t panels_v)
      : q(kRows * dim_k),
        scores(kRows * kKeys),
        scores_codes(kRows * kKeys),
        window(kRows * kKeys),
        window_codes(kRows * kKeys),
        out(kOutputs * kRows * panels_v * P) {}
  float* output(int which, int64_t panels_v) { return out + which * kRows * panels_v * P; }
};

// scores (MR, kKeys) of one block and panel.
void score_panel(const float* q, const float* k, const DiagnoseProblem& p, float* scores) {
  vf acc[MR][NR] = {};
  multiply<1, MR>(q, k, p.dim_k, acc);
  OSCAR_UNROLL
  for (int i = 0; i < MR; ++i) {
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) store(scores + i * kKeys + v * W, acc[i][v] * fill(p.scale));
  }
  if (!(p.logit_cap > 0)) return;
  for (int i = 0; i < MR; ++i) {
    vf l[NR];
    for (int v = 0; v < NR; ++v) l[v] = load(scores + i * kKeys + v * W);
    soft_cap(l, p.logit_cap);
    for (int v = 0; v < NR; ++v) store(scores + i * kKeys + v * W, l[v]);
  }
}

// out (MR, P) += weights (MR, kKeys) x values (kKeys, P).
void add_panel(const float* weights, const float* values, float* out) {
  vf acc[MR][NR];
  OSCAR_UNROLL
  for (int i = 0; i < MR; ++i) {
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) acc[i][v] = load(out + i * P + v * W);
  }
  multiply<kKeys, 1>(weights, values, kKeys, acc);
  OSCAR_UNROLL
  for (int i = 0; i < MR; ++i) {
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) store(out + i * P + v * W, acc[i][v]);
  }
}

struct Rescale {
  float exact = 1, codes = 1;
};

// A new running maximum, and the first key of the tile that has it. Returns the factor of everything summed
// before.
float raise(const float* scores, int64_t key, float tile_top, float& top, int64_t& argmax, double& sum,
            double* moment) {
  if (!(tile_top > top)) return 1;
  int s = 0;
  while (s < kKeys - 1 && scores[s] != tile_top) ++s;
  argmax = key + s;
  const double factor = std::exp(static_cast<double>(top) - tile_top);
  top = tile_top;
  sum *= factor;
  if (moment) *moment *= factor;
  return static_cast<float>(factor);
}

// One row of a tile: scores become weights exp(l - top); in a mixed tile those of the windows go to window[].
template <Tile kTile>
Rescale weigh(Row& row, int64_t key, int64_t sink, float* scores, float* scores_codes, float* window,
              float* window_codes) {
  constexpr bool kMasks = kTile == Tile::kMixed || kTile == Tile::kEdge, kCodes = has_history(kTile);
  const auto keys = [&](int s) { return lanes() + fill(static_cast<int32_t>(key + s)); };
  const auto visible = [&](int s) { return (keys(s) >= fill(row.first)) & (keys(s) <= fill(row.last)); };
  const auto history = [&](int s) {
    return (keys(s) >= fill(static_cast<int32_t>(sink))) & (keys(s) <= fill(row.history));
  };
  vf high = fill(kMasked), high_codes = high, error{}, power{};
  for (int s = 0; s < kKeys; s += W) {
    vf l = load(scores + s), c = kCodes ? load(scores_codes + s) : l;
    if constexpr (kTile == Tile::kMixed) c = history(s) ? c : l;
    if constexpr (kMasks) {
      const vi mask = visible(s);
      power = mask ? fma(l, l, power) : power;
      l = mask ? l : fill(kMasked);
      c = mask ? c : fill(kMasked);
      store(scores + s, l);
      if constexpr (kCodes) store(scores_codes + s, c);
    } else {
      power = fma(l, l, power);
    }
    high = larger(l, high);
    if constexpr (kCodes) {
      high_codes = larger(c, high_codes);
      error = fma(l - c, l - c, error);
    }
  }
  row.power += total(power);
  if constexpr (kCodes) row.error += total(error);
  Rescale rescale;
  const float tile_top = highest(high), tile_top_codes = kCodes ? highest(high_codes) : tile_top;
  rescale.exact = raise(scores, key, tile_top, row.top, row.argmax, row.sum, &row.moment);
  rescale.codes = raise(kCodes ? scores_codes : scores, key, tile_top_codes, row.top_codes, row.argmax_codes,
                        row.sum_codes, nullptr);

  vf sum{}, sum_codes{}, moment{};
  for (int s = 0; s < kKeys; s += 2 * W) {
    vf l[2], c[2], x[4], p[4];
    OSCAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      l[n] = load(scores + s + n * W);
      c[n] = kCodes ? load(scores_codes + s + n * W) : l[n];
      x[n] = larger(fill(kLowest), l[n] - fill(row.top));
      x[n + 2] = larger(fill(kLowest), c[n] - fill(row.top_codes));
    }
    exponentials(x, p);
    OSCAR_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int at = s + n * W;
      if constexpr (kMasks) {
        p[n] = visible(at) ? p[n] : vf{};
        p[n + 2] = visible(at) ? p[n + 2] : vf{};
      }
      sum += p[n];
      sum_codes += p[n + 2];
      if constexpr (kCodes) moment = fma(p[n], l[n] - c[n], moment);
      if constexpr (kTile == Tile::kMixed) {
        const vi mask = history(at);
        store(window + at, mask ? vf{} : p[n]);
        store(window_codes + at, mask ? vf{} : p[n + 2]);
        p[n] = mask ? p[n] : vf{};
        p[n + 2] = mask ? p[n + 2] : vf{};
      }
      store(scores + at, p[n]);
      store(scores_codes + at, p[n + 2]);
    }
  }
  row.sum += total(sum);
  row.sum_codes += total(sum_codes);
  if constexpr (kCodes) row.moment += total(moment);
  return rescale;
}

void scale_row(float* out, int64_t panels, float factor) {  // one row of (panels, kBlocks, MR, P)
  for (int64_t c = 0; c < panels; ++c, out += kRows * P) {
    for (int i = 0; i < P; i += W) store(out + i, load(out + i) * fill(factor));
  }
}

struct Bounds {
  int64_t sink, recent, window;  // inside [0, T + 1]
};

void diagnose_rows(const DiagnoseProblem& p, const DiagnoseResult& result, const Packed& packed,
                   const Bounds& bounds, int64_t row0, int64_t count, Workspace& work) {
  const int64_t measured = p.tokens - p.first_query, blocks = ceil_div(count, MR), panels_v = packed.panels_v;
  std::memset(work.out, 0, sizeof(float) * kOutputs * kRows * panels_v * P);
  for (int64_t r = 0; r < blocks * MR; ++r) {
    const int64_t t = r < count ? p.first_query + (row0 + r) / p.group : -1, j = (row0 + r) % p.group;
    Row& row = work.rows[r] = Row{};
    row.last = static_cast<int32_t>(t);
    row.first = static_cast<int32_t>(upper(0, t - bounds.window + 1));
    row.history = static_cast<int32_t>(t - bounds.recent);
    float* out = work.q + r / MR * MR * p.dim_k + r % MR;
    for (int d = 0; d < p.dim_k; ++d) out[d * MR] = t < 0 ? 0 : p.q[t * p.q_stride + j * p.dim_k + d];
  }

  const int64_t first_key = work.rows[0].first, last_key = work.rows[count - 1].last;
  for (int64_t tile = first_key / kKeys; tile <= last_key / kKeys; ++tile) {
    const int64_t key = tile * kKeys, end = key + kKeys - 1;
    Tile kind[kBlocks];
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t low = work.rows[b * MR].last, high = work.rows[lower(b * MR + MR, count) - 1].last;
      const bool visible = b * MR + MR <= count && end <= low && key > high - bounds.window;
      const bool no_history = end < bounds.sink || key > high - bounds.recent;
      kind[b] = key > high || end <= low - bounds.window ? Tile::kSkip
                : no_history                             ? visible ? Tile::kWindow : Tile::kEdge
                : visible && key >= bounds.sink && end <= low - bounds.recent ? Tile::kHistory
                                                                              : Tile::kMixed;
    }
    for (int64_t c = 0; c < kKeys / P; ++c) {
      const int64_t panel = (key / P + c) * p.dim_k * P;
      for (int64_t b = 0; b < blocks; ++b) {
        const float* q = work.q + b * MR * p.dim_k;
        const int64_t at = b * MR * kKeys + c * P;
        if (kind[b] == Tile::kSkip) continue;
        score_panel(q, packed.k + panel, p, work.scores + at);
        if (!has_history(kind[b])) continue;
        score_panel(q, packed.k_codes + panel, p, work.scores_codes + at);
      }
    }
    for (int64_t r = 0; r < blocks * MR; ++r) {
      const Tile k = kind[r / MR];
      if (k == Tile::kSkip) continue;
      const auto run = k == Tile::kHistory  ? weigh<Tile::kHistory>
                       : k == Tile::kWindow ? weigh<Tile::kWindow>
                       : k == Tile::kEdge   ? weigh<Tile::kEdge>
                                            : weigh<Tile::kMixed>;
      const int64_t at = r * kKeys;
      const Rescale rescale = run(work.rows[r], key, bounds.sink, work.scores + at, work.scores_codes + at,
                                  work.window + at, work.window_codes + at);
      if (rescale.exact != 1) {
        for (const int which : {kPV, kPVc, kPWindow}) {
          scale_row(work.output(which, panels_v) + r * P, panels_v, rescale.exact);
        }
      }
      if (rescale.codes != 1) {
        for (const int which : {kCV, kCVc, kCWindow}) {
          scale_row(work.output(which, panels_v) + r * P, panels_v, rescale.codes);
        }
      }
    }
    for (int64_t c = 0; c < panels_v; ++c) {
      const int64_t panel = (tile * panels_v + c) * kKeys * P;
      const float *v = packed.v + panel, *v_codes = packed.v_codes + panel;
      for (int64_t b = 0; b < blocks; ++b) {
        const float *weights = work.scores + b * MR * kKeys,
                    *weights_codes = work.scores_codes + b * MR * kKeys;
        const int64_t at = c * kRows * P + b * MR * P;
        const auto out = [&](Output which) { return work.output(which, panels_v) + at; };
        if (has_history(kind[b])) {
          add_panel(weights, v, out(kPV));
          add_panel(weights_codes, v, out(kCV));
          add_panel(weights, v_codes, out(kPVc));
          add_panel(weights_codes, v_codes, out(kCVc));
        }
        if (kind[b] == Tile::kMixed) {
          weights = work.window + b * MR * kKeys;
          weights_codes = work.window_codes + b * MR * kKeys;
        }
        if (kind[b] != Tile::kSkip && kind[b] != Tile::kHistory) {
          add_panel(weights, v, out(kPWindow));
          add_panel(weights_codes, v, out(kCWindow));
        }
      }
    }
  }

  for (int64_t r = 0; r < count; ++r) {
    const Row& row = work.rows[r];
    const int64_t at = (row0 + r) % p.group * measured + (row0 + r) / p.group;
    // Of the keys; then of the sink logit too.
    const double keys = row.top + std::log(row.sum), keys_codes = row.top_codes + std::log(row.sum_codes);
    double lse = keys, lse_codes = keys_codes, share = 1, share_codes = 1;
    if (p.sink_logits) {
      const double extra = p.sink_logits[(row0 + r) % p.group];
      lse = log_add(keys, extra);
      lse_codes = log_add(keys_codes, extra);
      share = std::exp(keys - lse);
      share_codes = std::exp(keys_codes - lse_codes);
    }
    result.kl[at] = share * row.moment / row.sum - lse + lse_codes;
    result.top1[at] = row.argmax == row.argmax_codes;
    result.logit_error[at] = row.error;
    result.logit_power[at] = row.power;
    const float exact = static_cast<float>(share / row.sum),
                codes = static_cast<float>(share_codes / row.sum_codes);
    for (int i = 0; i < p.dim_v; ++i) {
      const int64_t from = i / P * kRows * P + r * P + i % P, to = (row0 + r) * p.dim_v + i;
      const auto out = [&](Output which) { return work.output(which, panels_v)[from]; };
      result.o[to] = (out(kPV) + out(kPWindow)) * exact;
      result.o_values[to] = (out(kPVc) + out(kPWindow)) * exact;
      result.o_keys[to] = (out(kCV) + out(kCWindow)) * codes;
      result.o_codes[to] = (out(kCVc) + out(kCWindow)) * codes;
    }
  }
}

// Key tile `tile` of K and V, exact rows and those of [low, high) that are read from codes.
void pack_tile(const DiagnoseProblem& p, int64_t tile, int64_t panels_v, int64_t low, int64_t high,
               float* decoded, float* k, float* k_codes, float* v, float* v_codes) {
  const auto pack_k = [&](const float* rows, int64_t first, int64_t count, float* out) {
    for (int64_t s = first; s < first + count; ++s, rows += p.dim_k) {
      pack_panel(rows, p.dim_k, 1, p.dim_k, out + s / P * p.dim_k * P + s % P);
    }
  };
  const auto pack_v = [&](const float* rows, int64_t first, int64_t count, float* out) {
    out += tile * panels_v * kKeys * P;
    for (int64_t s = first % kKeys; s < first % kKeys + count; ++s, rows += p.dim_v) {
      for (int i = 0; i < p.dim_v; ++i) out[i / P * kKeys * P + s * P + i % P] = rows[i];
    }
  };
  const int64_t first = tile * kKeys, end = lower(first + kKeys, p.tokens);
  pack_k(p.k + first * p.dim_k, first, end - first, k);
  pack_v(p.v + first * p.dim_v, first, end - first, v);
  const int64_t from = upper(first, low), to = lower(end, high);
  if (from >= to) return;
  p.k_codes.decode(p.k_codes.self, from, to - from, decoded);
  pack_k(decoded, from, to - from, k_codes);
  p.v_codes.decode(p.v_codes.self, from, to - from, decoded);
  pack_v(decoded, from, to - from, v_codes);
}

void diagnose(const DiagnoseProblem& problem, const DiagnoseResult& result) {
  const auto& p = problem;
  const int64_t rows = (p.tokens - p.first_query) * p.group, row_tiles = ceil_div(rows, kRows);
  if (rows <= 0) return;
  const Bounds bounds{lower(upper(p.sink, 0), p.tokens), lower(upper(p.recent, 0), p.tokens + 1),
                      p.sliding_window > 0 ? lower(p.sliding_window, p.tokens) : p.tokens};
  const int64_t tiles = ceil_div(p.tokens, kKeys), panels_v = ceil_div(p.dim_v, P);
  const int64_t first_key = upper(0, p.first_query - bounds.window + 1);
  const int64_t low = upper(bounds.sink, first_key), high = p.tokens - bounds.recent;
  const bool history = low < high;
  const int64_t size_k = tiles * kKeys * p.dim_k, size_v = tiles * kKeys * panels_v * P;
  Scratch<float> k(size_k), k_codes(history ? size_k : 0), v(size_v), v_codes(history ? size_v : 0);
  // Without a history its weights are all zero, but a mixed tile (sink + recent = T) still multiplies them.
  const Packed packed{panels_v, k, history ? k_codes : k, v, history ? v_codes : v};
#pragma omp parallel
  {
    const FlushDenormals guard;
    Scratch<float> decoded(kKeys * upper(p.dim_k, p.dim_v));
    Workspace work(p.dim_k, panels_v);
#pragma omp for schedule(static)
    for (int64_t tile = first_key / kKeys; tile < tiles; ++tile) {
      pack_tile(p, tile, panels_v, low, high, decoded, k, k_codes, v, v_codes);
    }
    // The last queries see the most keys: longest first.
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < row_tiles; ++n) {
      const int64_t row0 = (row_tiles - 1 - n) * kRows;
      diagnose_rows(p, result, packed, bounds, row0, lower(kRows, rows - row0), work);
    }
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
