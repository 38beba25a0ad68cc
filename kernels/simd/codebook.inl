// Which codeword is nearest is a question of float32 scores s(c) = |c|^2 / 2 - c.x, except where rounding
// might decide.
//
// Rows are lanes, kRowLanes a panel; codewords go by in groups of P. Each row keeps its lowest group and the
// score of the second lowest. The group of the winner is scored again, now with codewords as lanes: whatever
// is within the rounding error of the best is compared in double. A row whose second group is that close
// looks through all groups that way.

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int kMostChannels = 64;
constexpr int kWords = 4, kRowVectors = W == 16 ? 4 : 3, kRowLanes = kRowVectors * W;  // scores in registers
constexpr float kFar = 3e38f;

struct Codebook {
  const float* words;  // (count, g)
  int g;
  int64_t groups;
  float highest_norm;     // max |c|^2
  Scratch<float> packed;  // (group, 1 + g, P): |c|^2 / 2, then -c; kFar and zeros behind the last codeword

  Codebook(const float* codebook, int dim, int count)
      : words(codebook), g(dim), groups(ceil_div(count, P)), highest_norm(0), packed(groups * (1 + g) * P) {
    for (int64_t n = 0; n < groups; ++n) {
      float* to = packed + n * (1 + g) * P;
      const int64_t first = n * P, used = lower(P, count - first);
      double norms[P] = {};
      for (int i = 0; i < g; ++i) {
        for (int64_t c = 0; c < used; ++c) to[(1 + i) * P + c] = -words[(first + c) * g + i];
      }
      for (int i = 0; i < g; ++i) {
        const float* x = to + (1 + i) * P;
        for (int c = 0; c < P; ++c) norms[c] += double(x[c]) * x[c];
      }
      for (int c = 0; c < P; ++c) {
        const float norm = static_cast<float>(norms[c]);
        to[c] = c < used ? norm / 2 : kFar;
        highest_norm = norm > highest_norm ? norm : highest_norm;
      }
    }
  }
};

struct RowPanel {
  float x[kMostChannels * kRowLanes];  // (g, kRowLanes)
  float best[kRowLanes];      // lowest score
  float second[kRowLanes];    // lowest score of another group
  int32_t winner[kRowLanes];  // group of the lowest score
  float close[kRowLanes];     // scores up to here may belong to the nearest codeword
};

// best, second and winner. kG: g where it is known, else 0.
template <int kG>
void screen(const Codebook& book, RowPanel& rows) {
  const int g = kG > 0 ? kG : book.g;
  for (int i = 0; i < kRowLanes; i += W) {
    store(rows.best + i, fill(kFar));
    store(rows.second + i, fill(kFar));
    store_bits(rows.winner + i, vi{});
  }
  for (int64_t n = 0; n < book.groups; ++n) {
    const float* words = book.packed + n * (1 + g) * P;
    vf low[kRowVectors];
    OSCAR_UNROLL
    for (int v = 0; v < kRowVectors; ++v) low[v] = fill(kFar);
    for (int c = 0; c < P; c += kWords) {
      const float* row = rows.x;
      asm(""
          : "+r"(row));  // else the compiler loads all of x before this loop, into registers that it spills
      vf scores[kWords][kRowVectors];
      OSCAR_UNROLL
      for (int w = 0; w < kWords; ++w) {
        OSCAR_UNROLL
        for (int v = 0; v < kRowVectors; ++v) scores[w][v] = fill(words[c + w]);
      }
      OSCAR_UNROLL
      for (int i = 0; i < g; ++i) {
        vf x[kRowVectors];
        OSCAR_UNROLL
        for (int v = 0; v < kRowVectors; ++v) x[v] = load(row + i * kRowLanes + v * W);
        OSCAR_UNROLL
        for (int w = 0; w < kWords; ++w) {
          const vf word = fill(words[(1 + i) * P + c + w]);
          OSCAR_UNROLL
          for (int v = 0; v < kRowVectors; ++v) scores[w][v] = fma(word, x[v], scores[w][v]);
        }
      }
      OSCAR_UNROLL
      for (int v = 0; v < kRowVectors; ++v) {
        low[v] = smaller(low[v],
                         smaller(smaller(scores[0][v], scores[1][v]), smaller(scores[2][v], scores[3][v])));
      }
    }
    OSCAR_UNROLL
    for (int v = 0; v < kRowVectors; ++v) {
      const int at = v * W;
      const vf best = load(rows.best + at);
      store(rows.second + at, smaller(load(rows.second + at), larger(low[v], best)));
      store_bits(rows.winner + at,
                 low[v] < best ? fill(static_cast<int32_t>(n)) : load_bits(rows.winner + at));
      store(rows.best + at, smaller(low[v], best));
    }
  }
}

// With |c|^2 <= C and |x|^2 = X a score is a sum of 1 + g terms, all partial sums at most C + X / 2: rounding
// costs (g + 2) 2^-24 (C + X / 2), of the winner and of its rival. A codeword no farther than the winner has
// |c|^2 <= 2 X + 2 |x - c|^2 <= 4 (X + best), whatever the other codewords are.
template <int kG>
void bound_close(const Codebook& book, RowPanel& rows) {
  const int g = kG > 0 ? kG : book.g;
  const vf error = fill(1.1f * 1.1920929e-7f * static_cast<float>(g + 3));
  for (int at = 0; at < kRowLanes; at += W) {
    vf norm{};
    OSCAR_UNROLL
    for (int i = 0; i < g; ++i) {
      const vf x = load(rows.x + i * kRowLanes + at);
      norm = fma(x, x, norm);
    }
    const vf best = load(rows.best + at);
    const vf words = smaller(fill(4.2f) * (norm + best), fill(book.highest_norm));
    store(rows.close + at, best + (error * (words + fill(0.5f) * norm) + fill(1e-36f)));
  }
}

template <int kG>
OSCAR_INLINE double distance_to(const Codebook& book, int64_t c, const float* x) {
  const int g = kG > 0 ? kG : book.g;
  const float* word = book.words + c * g;
  double sum = 0;
  OSCAR_UNROLL
  for (int i = 0; i < g; ++i) {
    const double difference = double(x[i]) - word[i];
    sum += difference * difference;
  }
  return sum;
}

// One bit a codeword of the group: its score is at most `close`. x[i * kRowLanes].
template <int kG>
OSCAR_INLINE uint32_t close_words(const Codebook& book, int64_t group, const float* x, float close) {
  const int g = kG > 0 ? kG : book.g;
  const float* words = book.packed + group * (1 + g) * P;
  vf scores[NR];
  OSCAR_UNROLL
  for (int v = 0; v < NR; ++v) scores[v] = load(words + v * W);
  OSCAR_UNROLL
  for (int i = 0; i < g; ++i) {
    const vf row = fill(x[i * kRowLanes]);
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) scores[v] = fma(load(words + (1 + i) * P + v * W), row, scores[v]);
  }
  uint32_t found = 0;
  OSCAR_UNROLL
  for (int v = 0; v < NR; ++v) found |= mask_bits(scores[v] <= fill(close)) << (v * W);
  return found;
}

// The close codewords of groups [first, end) one by one. Without one (NaN): 0, as the reference.
__attribute__((noinline)) int64_t nearest_of_close(const Codebook& book, int64_t first, int64_t end,
                                                   const float* lanes, float close, const float* x) {
  double best = static_cast<double>(INFINITY);
  int64_t nearest = 0;
  for (int64_t n = first; n < end; ++n) {
    for (uint32_t found = close_words<0>(book, n, lanes, close); found; found &= found - 1) {
      const int64_t c = n * P + __builtin_ctz(found);
      const double distance = distance_to<0>(book, c, x);
      if (!(distance < best)) continue;
      best = distance;
      nearest = c;
    }
  }
  return nearest;
}

template <int kG>
void nearest_of_panel(const Codebook& book, RowPanel& rows, const float* from, int64_t stride, int64_t count,
                      uint16_t* index, int64_t index_stride, float* distance) {
  const int g = kG > 0 ? kG : book.g;
  for (int64_t r = 0; r < count; ++r) {
    OSCAR_UNROLL
    for (int i = 0; i < g; ++i) rows.x[i * kRowLanes + r] = from[r * stride + i];
  }
  screen<kG>(book, rows);
  bound_close<kG>(book, rows);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t n = rows.winner[r];
    const float close = rows.close[r];
    const uint32_t found = close_words<kG>(book, n, rows.x + r, close);
    int64_t nearest = n * P + __builtin_ctz(found | 1u << 31);
    const bool alone = rows.second[r] > close;
    if (__builtin_expect(!alone | (found == 0) | ((found & (found - 1)) != 0), 0)) {
      nearest = nearest_of_close(book, alone ? n : 0, alone ? n + 1 : book.groups, rows.x + r, close,
                                 from + r * stride);
    }
    index[r * index_stride] = static_cast<uint16_t>(nearest);
    if (distance) distance[r] = static_cast<float>(distance_to<kG>(book, nearest, from + r * stride));
  }
}

void nearest_codeword(const float* rows, int64_t stride, int64_t n, int g, const float* codebook, int count,
                      uint16_t* index, int64_t index_stride, float* distance) {
  const Codebook book(codebook, g, count);
  RowPanel panel{};
  const auto run = g == 1    ? nearest_of_panel<1>
                   : g == 2  ? nearest_of_panel<2>
                   : g == 4  ? nearest_of_panel<4>
                   : g == 8  ? nearest_of_panel<8>
                   : g == 16 ? nearest_of_panel<16>
                   : g == 32 ? nearest_of_panel<32>
                             : nearest_of_panel<0>;
  for (int64_t r = 0; r < n; r += kRowLanes) {
    run(book, panel, rows + r * stride, stride, lower(kRowLanes, n - r), index + r * index_stride,
        index_stride, distance ? distance + r : nullptr);
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
