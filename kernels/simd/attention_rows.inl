// Streaming attention whose softmax never leaves the registers: exp(l - shift) needs no maximum, only a shift
// that is not far below it.
//
// Rows are (query, head) pairs in order of time, MR a block, kTileBlocks a tile; keys go by in spans. The
// shift of a row starts as its largest logit on its own key and on the first panel of the sequence, where
// attention sinks are. A span with a logit more than kRoom above the shift is done again with that logit as
// the shift, which is rare; below the shift nothing is lost, because the sum of a row is at least 1.
//
// The history of a query, keys s with sink <= s <= t - recent, may come from other rows (codes). A panel that
// is history to some rows of a block only is scored from both; a value is taken from one or the other, key by
// key.

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int kSpan = 256;  // keys; a multiple of P
constexpr int kTileBlocks = 48 / MR;
constexpr int kDecoded = 64;  // rows at a time
constexpr float kRoom = 40;   // e^40 times any sum of values is finite
constexpr float kNothing = -3e38f;
// All keys are visible; some are. The others only set `high`: for the visible keys, for the row's own key.
enum class Pass { kVisible, kMasked, kTop, kOwn };
enum class Source { kExact, kCodes, kBoth };

struct AttentionCache {      // packed
  const float *k, *k_codes;  // panels (dim_k, P)
  const float *v, *v_codes;  // (panel of v, value_rows, P)
  int64_t value_rows;
  int64_t sink, recent;  // recent > T: no history, no codes
  int64_t window;        // in [1, T]
};

struct AttentionRows {      // one block
  int64_t lowest, highest;  // positions of its first and last query
  bool full;                // no padding
  float minus_shift[MR];
  int32_t last[MR], first[MR];  // visible keys; last -1: padding
  int32_t history[MR];          // last key of the history, below `sink` without one
  float sum[MR][W];             // lanes of this span
  float high[MR][W];            // lanes of this span: l - shift
  double sums[MR];
};

// weights (MR, kSpan) of one block and panel. kBoth: k_codes where sink <= key <= history, else k.
template <Pass kPass, bool kBoth, bool kCapped>
void attend_panel(const float* q, const float* k, const float* k_codes, const AttentionProblem& p,
                  AttentionRows& rows, int32_t key, int32_t sink, float* weights) {
  const int dim = p.dim_k;
  const float scale = p.scale;
  vf scores[MR][NR];
  {
    vf acc[MR][NR] = {};
    multiply<1, MR>(q, k, dim, acc);
    if constexpr (kBoth) {
      vf codes[MR][NR] = {};
      multiply<1, MR>(q, k_codes, dim, codes);
      for (int i = 0; i < MR; ++i) {
        for (int v = 0; v < NR; ++v) {
          const vi keys = lanes() + fill(key + v * W);
          acc[i][v] = ((keys >= fill(sink)) & (keys <= fill(rows.history[i]))) ? codes[i][v] : acc[i][v];
        }
      }
    }
    OSCAR_UNROLL
    for (int i = 0; i < MR; ++i) {
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) {
        scores[i][v] =
            kCapped ? acc[i][v] * fill(scale) : fma(acc[i][v], fill(scale), fill(rows.minus_shift[i]));
      }
    }
    if constexpr (kCapped) {
      for (int i = 0; i < MR; ++i) {
        soft_cap(scores[i], p.logit_cap);
        for (int v = 0; v < NR; ++v) scores[i][v] += fill(rows.minus_shift[i]);
      }
    }
  }
  OSCAR_UNROLL
  for (int i = 0; i < MR; i += 2) {
    vf x[2 * NR], p[2 * NR];
    vi visible[2 * NR];
    OSCAR_UNROLL
    for (int n = 0; n < 2 * NR; ++n) {
      const int r = i + n / NR;
      const vi keys = lanes() + fill(key + n % NR * W);
      x[n] = scores[r][n % NR];
      if constexpr (kPass != Pass::kVisible) {
        visible[n] =
            (keys <= fill(rows.last[r])) & (keys >= fill(kPass == Pass::kOwn ? rows.last[r] : rows.first[r]));
        x[n] = visible[n] ? x[n] : fill(kNothing);
      }
    }
    OSCAR_UNROLL
    for (int r = i; r < i + 2; ++r) {
      vf high = load(rows.high[r]);
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) high = larger(x[(r - i) * NR + v], high);
      store(rows.high[r], high);
    }
    if constexpr (kPass == Pass::kTop || kPass == Pass::kOwn) continue;
    OSCAR_UNROLL
    for (int n = 0; n < 2 * NR; ++n) x[n] = larger(fill(kLowest), x[n]);
    exponentials(x, p);
    OSCAR_UNROLL
    for (int r = i; r < i + 2; ++r) {
      vf sum = load(rows.sum[r]);
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) {
        const int n = (r - i) * NR + v;
        if constexpr (kPass == Pass::kMasked) p[n] = visible[n] ? p[n] : vf{};
        store(weights + r * kSpan + v * W, p[n]);
        sum += p[n];
      }
      store(rows.sum[r], sum);
    }
  }
}

void clear_span(AttentionRows& rows) {
  for (int i = 0; i < MR; ++i) {
    store(rows.sum[i], vf{});
    store(rows.high[i], fill(kNothing));
  }
}

// out (MR, P) += weights (MR, kSpan) x values of keys [begin, end), a part of one span; v and v_codes
// (value_rows, P). The span is summed by itself: shorter float32 chains.
void add_values(const AttentionCache& cache, const AttentionRows& rows, const float* weights, const float* v,
                const float* v_codes, int64_t begin, int64_t end, float* out) {
  const auto inside = [&](int64_t key, int64_t low) { return upper(low, lower(key, end)); };
  const int64_t codes = inside(cache.sink, begin),           // history to all rows up to `some`,
      some = inside(rows.lowest - cache.recent + 1, codes),  // to some up to `recent`
      recent = inside(rows.highest - cache.recent + 1, some);
  vf acc[MR][NR] = {};
  weights -= begin;
  multiply<kSpan, 1>(weights + begin, v + begin * P, codes - begin, acc);
  multiply<kSpan, 1>(weights + codes, v_codes + codes * P, some - codes, acc);
  for (int64_t key = some; key < recent; ++key) {
    OSCAR_UNROLL
    for (int i = 0; i < MR; ++i) {
      const float* from = (key <= rows.history[i] ? v_codes : v) + key * P;
      OSCAR_UNROLL
      for (int n = 0; n < NR; ++n)
        acc[i][n] = fma(fill(weights[i * kSpan + key]), load(from + n * W), acc[i][n]);
    }
  }
  multiply<kSpan, 1>(weights + recent, v + recent * P, end - recent, acc);
  OSCAR_UNROLL
  for (int i = 0; i < MR; ++i) {
    OSCAR_UNROLL
    for (int n = 0; n < NR; ++n) {
      float* to = out + i * P + n * W;
      store(to, load(to) + acc[i][n]);
    }
  }
}

struct AttentionTile {
  Scratch<float> q, weights, out;  // (block, dim_k, MR), (block, MR, kSpan), (block, panel of v, MR, P)
  Scratch<AttentionRows> rows;
  AttentionTile(int dim_k, int64_t panels_v)
      : q(kTileBlocks * MR * dim_k),
        weights(kTileBlocks * MR * kSpan),
        out(kTileBlocks * MR * panels_v * P),
        rows(kTileBlocks) {}
};

struct Panels {
  int64_t begin, end;  // [begin, end) holds a visible key of the block
};
OSCAR_INLINE Panels visible_panels(const AttentionRows& rows, int64_t window, int64_t span) {
  const int64_t first = upper(0, rows.lowest - window + 1) / P, last = rows.highest / P + 1;
  return {upper(first, span * (kSpan / P)), lower(last, (span + 1) * (kSpan / P))};
}

Source source(const AttentionCache& cache, const AttentionRows& rows, int64_t key) {
  const int64_t end = key + P - 1;
  if (end < cache.sink || key > rows.highest - cache.recent) return Source::kExact;
  return key >= cache.sink && end <= rows.lowest - cache.recent ? Source::kCodes : Source::kBoth;
}

template <Pass kPass>
void attend_from(Source source, const AttentionProblem& p, const AttentionCache& cache, const float* q,
                 int64_t key, AttentionRows& rows, float* weights) {
  constexpr Pass kMasked = kPass == Pass::kVisible ? Pass::kMasked : kPass;  // kBoth is rare enough
  const bool both = source == Source::kBoth;
  const auto run = p.logit_cap > 0
                       ? both ? attend_panel<kMasked, true, true> : attend_panel<kPass, false, true>
                   : both ? attend_panel<kMasked, true, false>
                          : attend_panel<kPass, false, false>;
  run(q, (source == Source::kCodes ? cache.k_codes : cache.k) + key * p.dim_k, cache.k_codes + key * p.dim_k,
      p, rows, static_cast<int32_t>(key), static_cast<int32_t>(cache.sink), weights);
}

void attend(const AttentionProblem& p, const AttentionCache& cache, const float* q, int64_t panel,
            AttentionRows& rows, float* weights) {
  const int64_t key = panel * P, end = key + P - 1;
  const bool all = rows.full && end <= rows.lowest && key > rows.highest - cache.window;
  const auto run = all ? attend_from<Pass::kVisible> : attend_from<Pass::kMasked>;
  run(source(cache, rows, key), p, cache, q, key, rows, weights + key % kSpan);
}

// The first shift of every row. It depends on nothing but the row, and so does all that follows.
void start_rows(const AttentionProblem& p, const AttentionCache& cache, const float* q, AttentionRows& rows) {
  clear_span(rows);
  for (int i = 0; i < MR; ++i) {
    rows.minus_shift[i] = 0;
    rows.sums[i] = 0;
  }
  if (rows.lowest < P - 1 + cache.window) {
    attend_from<Pass::kTop>(source(cache, rows, 0), p, cache, q, 0, rows, nullptr);
  }
  for (int64_t key = rows.lowest / P * P; key <= rows.highest; key += P) {
    attend_from<Pass::kOwn>(source(cache, rows, key), p, cache, q, key, rows, nullptr);
  }
  for (int i = 0; i < MR; ++i) {
    if (rows.last[i] >= 0) rows.minus_shift[i] = -highest(load(rows.high[i]));
  }
}

// Whether a row got a logit too far above its shift; its shift is raised and what it has summed so far
// scaled.
bool raise_shifts(AttentionRows& rows, int64_t panels_v, float* out) {
  vf high = load(rows.high[0]);
  for (int i = 1; i < MR; ++i) high = larger(load(rows.high[i]), high);
  if (!(highest(high) > kRoom)) return false;
  for (int i = 0; i < MR; ++i) {
    const float excess = highest(load(rows.high[i]));
    if (!(excess > kRoom)) continue;
    const float before = rows.minus_shift[i];
    rows.minus_shift[i] = before - excess;
    const double factor = std::exp(static_cast<double>(rows.minus_shift[i]) - before);
    rows.sums[i] *= factor;
    for (int64_t c = 0; c < panels_v; ++c) {
      for (int v = 0; v < P; ++v) out[(c * MR + i) * P + v] *= static_cast<float>(factor);
    }
  }
  return true;
}

void attention_rows(const AttentionProblem& p, const AttentionCache& cache, int64_t row0, int64_t count,
                    AttentionTile& tile, float* o, float* lse) {
  const int64_t blocks = ceil_div(count, MR), panels_v = ceil_div(p.dim_v, P);
  std::memset(tile.out, 0, sizeof(float) * kTileBlocks * MR * panels_v * P);
  for (int64_t r = 0; r < blocks * MR; ++r) {
    AttentionRows& rows = tile.rows[r / MR];
    const int64_t i = r % MR, t = r < count ? (row0 + r) / p.group : -1, j = (row0 + r) % p.group;
    rows.last[i] = static_cast<int32_t>(t);
    rows.first[i] = static_cast<int32_t>(upper(0, t - cache.window + 1));
    rows.history[i] = static_cast<int32_t>(t - cache.recent);
    float* out = tile.q + r / MR * MR * p.dim_k + i;
    for (int d = 0; d < p.dim_k; ++d) out[d * MR] = t < 0 ? 0 : p.q[t * p.q_stride + j * p.dim_k + d];
  }
  for (int64_t b = 0; b < blocks; ++b) {
    AttentionRows& rows = tile.rows[b];
    rows.lowest = rows.last[0];
    rows.highest = (row0 + lower(b * MR + MR, count) - 1) / p.group;
    rows.full = b * MR + MR <= count;
    start_rows(p, cache, tile.q + b * MR * p.dim_k, rows);
  }

  const int64_t first_key = tile.rows[0].first[0], last_key = tile.rows[blocks - 1].highest;
  for (int64_t span = first_key / kSpan; span <= last_key / kSpan; ++span) {
    Panels seen[kTileBlocks];
    for (int64_t b = 0; b < blocks; ++b) {
      seen[b] = visible_panels(tile.rows[b], cache.window, span);
      clear_span(tile.rows[b]);
    }
    for (int64_t c = span * (kSpan / P); c < (span + 1) * (kSpan / P); ++c) {
      for (int64_t b = 0; b < blocks; ++b) {
        if (c < seen[b].begin || c >= seen[b].end) continue;
        attend(p, cache, tile.q + b * MR * p.dim_k, c, tile.rows[b], tile.weights + b * MR * kSpan);
      }
    }
    for (int64_t b = 0; b < blocks; ++b) {
      AttentionRows& rows = tile.rows[b];
      if (seen[b].begin >= seen[b].end) continue;
      if (raise_shifts(rows, panels_v, tile.out + b * panels_v * MR * P)) {
        clear_span(rows);
        for (int64_t c = seen[b].begin; c < seen[b].end; ++c) {
          attend(p, cache, tile.q + b * MR * p.dim_k, c, rows, tile.weights + b * MR * kSpan);
        }
      }
      for (int i = 0; i < MR; ++i) rows.sums[i] += total(load(rows.sum[i]));
    }
    for (int64_t c = 0; c < panels_v; ++c) {
      for (int64_t b = 0; b < blocks; ++b) {
        if (seen[b].begin >= seen[b].end) continue;
        const int64_t key = seen[b].begin * P, panel = c * cache.value_rows * P;
        add_values(cache, tile.rows[b], tile.weights + b * MR * kSpan + key % kSpan, cache.v + panel,
                   cache.v_codes + panel, key, lower(seen[b].end * P, tile.rows[b].highest + 1),
                   tile.out + (b * panels_v + c) * MR * P);
      }
    }
  }

  for (int64_t r = 0; r < count; ++r) {
    const AttentionRows& rows = tile.rows[r / MR];
    const int64_t i = r % MR, t = (row0 + r) / p.group, j = (row0 + r) % p.group;
    double lse_of_row = std::log(rows.sums[i]) - rows.minus_shift[i], of_keys = 1;
    if (p.sink_logits) {
      const double all = log_add(lse_of_row, p.sink_logits[j]);
      of_keys = std::exp(lse_of_row - all);
      lse_of_row = all;
    }
    if (lse) lse[j * p.lse_stride + t] = static_cast<float>(lse_of_row);
    const float factor = static_cast<float>(of_keys / rows.sums[i]);
    const float* out = tile.out + (r / MR * panels_v * MR + i) * P;
    float* to = o + t * p.o_stride + j * p.dim_v;
    for (int64_t d = 0; d < p.dim_v; d += P, out += MR * P) {
      float row[P];
      for (int n = 0; n < P; n += W) store(row + n, load(out + n) * fill(factor));
      std::memcpy(to + d, row, sizeof(float) * lower(P, p.dim_v - d));
    }
  }
}

// Key rows [first, first + count), which may begin and end inside panels, into panels (dim, P).
void pack_keys(const float* rows, int64_t stride, int64_t first, int64_t count, int dim, float* panels) {
  for (int64_t s = first, n; s < first + count; s += n, rows += n * stride) {
    n = lower(P - s % P, first + count - s);
    pack_panel(rows, stride, n, dim, panels + s / P * dim * P + s % P);
  }
}

void pack_values(const float* rows, int64_t stride, int64_t first, int64_t count, int dim, int64_t value_rows,
                 float* panels) {
  for (int64_t s = first; s < first + count; ++s, rows += stride) {
    for (int64_t i = 0; i < dim; i += P) {
      std::memcpy(panels + (i * value_rows) + s * P, rows + i, sizeof(float) * lower(P, dim - i));
    }
  }
}

void attend_all(const AttentionProblem& p, const AttentionCache& cache, float* o, float* lse) {
  const FlushDenormals guard;
  AttentionTile tile(p.dim_k, ceil_div(p.dim_v, P));
  const int64_t rows = p.tokens * p.group;
  for (int64_t row0 = 0; row0 < rows; row0 += kTileBlocks * MR) {
    attention_rows(p, cache, row0, lower(kTileBlocks * MR, rows - row0), tile, o, lse);
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
