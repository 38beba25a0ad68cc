// Decode over native pages of vector codes (kernels/vector_pages.h), the 256 words of a group never
// multiplied with a row.
//
// Keys: what every word of every group adds to the logits of 4 query heads is tabulated once, and a token
// adds up its entries. Values: the weights of 4 heads are summed by group and code, and those sums multiply
// the words once at the end. Both cost 256 words per part and KV head, so short parts go through rows.

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int kEntry = 4, kTable = kVectorWords * kEntry;  // floats of a group: (256, 4 heads)
constexpr int kPagesAtOnce = 8;  // their tokens' sums fit the L1 cache beside four groups
constexpr int kShortPart = 192;

struct Side {
  const int8_t* words;  // (256, dim) of the KV head
  const float* scales;  // (dim / size)
  int dim, size, groups;
  bool norm;
  Side(const DecodePart& part, bool keys) {
    const CacheFormat& f = *part.format;
    const SideFormat& side = keys ? f.k : f.v;
    const CodebookView& book = keys ? part.inputs->k_book : part.inputs->v_book;
    dim = f.dim;
    size = side.kind == CodeKind::vector4x8 ? 4 : 8;
    groups = dim / size;
    norm = side.norm;
    words = book.words + int64_t{part.head} * kVectorWords * dim;
    scales = book.scales + part.head * groups;
  }
};

OSCAR_INLINE vf load_word(const int8_t* p) {
  return __builtin_convertvector(load_bytes(p), vf);
}

// Lane h of every quad: the sum of that quad of x[h].
OSCAR_INLINE vf quad_sums(const vf (&x)[4]) {
#if OSCAR_WIDTH == 8 && defined(__AVX2__)
  return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
#else
  float lanes[4][W], sums[W];
  for (int h = 0; h < 4; ++h) store(lanes[h], x[h]);
  for (int i = 0; i < W; i += 4) {
    v4 a = load4(lanes[0] + i), b = load4(lanes[1] + i), c = load4(lanes[2] + i), d = load4(lanes[3] + i);
    transpose(a, b, c, d);
    store4(sums + i, (a + b) + (c + d));
  }
  return load(sums);
#endif
}
// Lane h of every quad, in the whole quad.
template <int H>
OSCAR_INLINE vf spread(vf x) {
#if OSCAR_WIDTH == 4
  return __builtin_shufflevector(x, x, H, H, H, H);
#elif OSCAR_WIDTH == 8
  return __builtin_shufflevector(x, x, H, H, H, H, H + 4, H + 4, H + 4, H + 4);
#else
  return __builtin_shufflevector(x, x, H, H, H, H, H + 4, H + 4, H + 4, H + 4, H + 8, H + 8, H + 8, H + 8,
                                 H + 12, H + 12, H + 12, H + 12);
#endif
}
// Entries of the groups of W channels.
OSCAR_INLINE vf entries(const float* sums, int size, int channel) {
  const auto at = [&](int quad) { return load4(sums + (channel + 4 * quad) / size * kTable); };
#if OSCAR_WIDTH == 4
  return at(0);
#elif OSCAR_WIDTH == 8
  return __builtin_shufflevector(at(0), at(1), 0, 1, 2, 3, 4, 5, 6, 7);
#else
  float lanes[W];
  for (int n = 0; n < kQuads; ++n) store4(lanes + 4 * n, at(n));
  return load(lanes);
#endif
}

OSCAR_INLINE float* entry_of(float* table, size_t code) {
  return reinterpret_cast<float*>(reinterpret_cast<char*>(table) + (code << 4));
}
OSCAR_INLINE const float* entry_of(const float* table, size_t code) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(table) + (code << 4));
}

// tables (4, groups / 4, 256, 4): group 4 j + t is at (t, j), as a token's codes are.
template <int H>
void tabulate(const Side& side, const float* q, float* tables) {
  for (int c = 0; c < kVectorWords; ++c) {
    for (int i = 0; i < side.dim; i += W) {
      const vf word = load_word(side.words + c * side.dim + i);
      vf x[4] = {};
      for (int h = 0; h < H; ++h) x[h] = word * load(q + h * side.dim + i);
      float lanes[W];
      store(lanes, quad_sums(x));
      for (int n = 0; n < W; n += 4) {
        const int group = (i + n) / side.size;
        float* to = tables + (group % 4 * (side.groups / 4) + group / 4) * kTable + c * kEntry;
        v4 entry = load4(lanes + n) * side.scales[group];
        if ((i + n) % side.size != 0) entry += load4(to);
        store4(to, entry);
      }
    }
  }
}

// sums (64, 4) += table entries of C of a token's codes, those of t and i in [offset, offset + C).
template <int C>
void look_up(const uint8_t* codes, int size, int n, int t, int offset, const float* tables, float* sums) {
  const int tokens = 16 / n;
  for (int g = 0; g < 8; ++g) {
    const int flip = size == 4 ? g % 2 * 2 : g % C;
    const float* table[C];
    for (int i = 0; i < C; ++i) table[i] = tables + ((offset + i) ^ flip) * kTable;
    const uint8_t* at = codes + 16 * (4 * g + t) + offset;
    for (int r = 0; r < 8; ++r, sums += kEntry) {
      const uint8_t* code = at + 512 * (r / tokens) + n * (r % tokens);
      v4 x = load4(entry_of(table[0], code[0])) + load4(entry_of(table[1], code[1]));
      if constexpr (C == 4) x += load4(entry_of(table[2], code[2])) + load4(entry_of(table[3], code[3]));
      store4(sums, load4(sums) + x);
    }
  }
}

// The factor of each token's words; 1 without.
void token_norms(const Side& side, const uint8_t* block, float* norms) {
  for (int t = 0; t < kPage; t += W) {
    vf x = fill(1.0f);
    if (side.norm) {
      const vh_anywhere halves = *reinterpret_cast<const vh_anywhere*>(block + kPage * side.groups + 2 * t);
      x = low_halves(__builtin_convertvector(halves, vi));
    }
    store(norms + t, x);
  }
}

// Rows (64, dim) of a page, each times its norm.
void vector_rows(const Side& side, bool keys, const uint8_t* block, const float* norms, float* rows) {
  for (int t = 0; t < kPage; ++t) {
    for (int group = 0; group < side.groups; ++group) {
      const int code = block[keys ? vector_key_byte(side.dim, side.size, t, group)
                                  : vector_value_byte(side.size, t, group)];
      const float factor = side.scales[group] * norms[t];
      for (int i = group * side.size; i < (group + 1) * side.size; ++i) {
        rows[t * side.dim + i] = side.words[code * side.dim + i] * factor;
      }
    }
  }
}

struct RowsOfPage {
  const float* at[kRowsAtOnce];
  RowsOfPage(const float* rows, int dim) {
    for (int t = 0; t < kRowsAtOnce; ++t) at[t] = rows + t * dim;
  }
};

void vector_keys(const DecodePart& part, const PartPlan& plan, const float* q, DecodeScratch& s) {
  const Side side(part, true);
  const int group = part.format->group, n = side.groups / 4;
  const int32_t pages = plan.stride / kPage, first_page = plan.begin / kPage;
  float norms[kPage];
  if (part.end - part.first < kShortPart) {
    const RowsOfPage rows(s.rows, side.dim);
    for (int32_t page = 0; page < pages; ++page) {
      const uint8_t* block = page_block(part, plan, true, first_page + page);
      token_norms(side, block, norms);
      vector_rows(side, true, block, norms, s.rows);
      head_blocks(group, [&](int first, auto heads) {
        row_keys<heads.value>(rows.at, kPage, side.dim, q + first * side.dim,
                              s.logits + first * plan.stride + page * kPage, plan.stride);
      });
    }
    return;
  }

  const int64_t owner = part.sequence * part.format->kv_heads + part.head + 1;
  const bool tabulated = *s.tables_of == owner;
  *s.tables_of = owner;
  float* tables = s.words;
  head_blocks(group, [&](int first, auto heads) {
    constexpr int H = heads.value;
    if (!tabulated) tabulate<H>(side, q + first * side.dim, tables);
    for (int32_t page = 0; page < pages; page += kPagesAtOnce) {
      const int count = static_cast<int>(lower(kPagesAtOnce, pages - page));
      std::memset(s.operands, 0, sizeof(float) * count * kPage * kEntry);
      const uint8_t* blocks[kPagesAtOnce];
      for (int p = 0; p < count; ++p) blocks[p] = page_block(part, plan, true, first_page + page + p);
      for (int t = 0; t < 4; ++t) {
        for (int offset = 0; offset < n; offset += 4) {
          for (int p = 0; p < count; ++p) {
            float* sums = s.operands + p * kPage * kEntry;
            if (n == 2) {
              look_up<2>(blocks[p], side.size, n, t, 0, tables + t * n * kTable, sums);
            } else {
              look_up<4>(blocks[p], side.size, n, t, offset, tables + t * n * kTable, sums);
            }
          }
        }
      }
      for (int p = 0; p < count; ++p) {
        token_norms(side, blocks[p], norms);
        for (int i = 0; i < kPage; i += 4) {
          const float* sums = s.operands + (p * kPage + i) * kEntry;
          v4 x[4] = {load4(sums), load4(sums + 4), load4(sums + 8), load4(sums + 12)};
          transpose(x[0], x[1], x[2], x[3]);
          float* to = s.logits + first * plan.stride + (page + p) * kPage + i;
          for (int h = 0; h < H; ++h) store4(to + h * plan.stride, x[h] * load4(norms + i));
        }
      }
    }
    tables += side.groups * kTable;
  });
}

// sums (4, 256, 4) of four groups += weights (16, 4) of the tokens of 16 codes each.
void add_weights(const uint8_t* codes, const float* weights, float* sums) {
  for (int b = 0; b < 16; ++b, weights += kEntry) {
    const v4 w = load4(weights);
    OSCAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      float* to = entry_of(sums + n * kTable, codes[b + 64 * n]);
      store4(to, load4(to) + w);
    }
  }
}

// o (H, dim) = sums times words.
template <int H>
void multiply_words(const Side& side, const float* sums, float* o) {
  for (int i = 0; i < side.dim; i += W) {
    vf acc[2][4] = {};
    for (int c = 0; c < kVectorWords; c += 2) {
      OSCAR_UNROLL
      for (int n = 0; n < 2; ++n) {
        const vf word = load_word(side.words + (c + n) * side.dim + i),
                 weight = entries(sums + (c + n) * kEntry, side.size, i);
        acc[n][0] = fma(word, spread<0>(weight), acc[n][0]);
        if constexpr (H > 1) acc[n][1] = fma(word, spread<1>(weight), acc[n][1]);
        if constexpr (H > 2) acc[n][2] = fma(word, spread<2>(weight), acc[n][2]);
        if constexpr (H > 3) acc[n][3] = fma(word, spread<3>(weight), acc[n][3]);
      }
    }
    float scales[W];
    for (int l = 0; l < W; ++l) scales[l] = side.scales[(i + l) / side.size];
    for (int h = 0; h < H; ++h) store(o + h * side.dim + i, (acc[0][h] + acc[1][h]) * load(scales));
  }
}

void vector_values(const DecodePart& part, const PartPlan& plan, DecodeScratch& s) {
  const Side side(part, false);
  const int group = part.format->group;
  const int32_t pages = plan.stride / kPage, first_page = plan.begin / kPage;
  float norms[kPage];
  const auto visible_norms = [&](const uint8_t* block, int32_t page) {
    token_norms(side, block, norms);
    for (int t = 0; t < kPage; ++t) {
      const int32_t token = plan.begin + page * kPage + t;
      if (token < part.first || token >= part.end) norms[t] = 0;  // it may be a NaN
    }
  };
  if (part.end - part.first < kShortPart) {
    const RowsOfPage rows(s.rows, side.dim);
    for (int32_t page = 0; page < pages; ++page) {
      const uint8_t* block = page_block(part, plan, false, first_page + page);
      visible_norms(block, page);
      vector_rows(side, false, block, norms, s.rows);
      head_blocks(group, [&](int first, auto heads) {
        row_values<heads.value>(rows.at, kPage, side.dim, s.logits + first * plan.stride + page * kPage,
                                plan.stride, s.o + first * side.dim);
      });
    }
    return;
  }

  head_blocks(group, [&](int first, auto heads) {
    constexpr int H = heads.value;
    std::memset(s.sums, 0, sizeof(float) * side.groups * kTable);
    for (int32_t page = 0; page < pages; page += kPagesAtOnce) {
      const int count = static_cast<int>(lower(kPagesAtOnce, pages - page));
      const uint8_t* blocks[kPagesAtOnce];
      for (int p = 0; p < count; ++p) {
        blocks[p] = page_block(part, plan, false, first_page + page + p);
        visible_norms(blocks[p], page + p);
        for (int i = 0; i < kPage; i += 4) {
          v4 x[4] = {};
          const float* from = s.logits + first * plan.stride + (page + p) * kPage + i;
          for (int h = 0; h < H; ++h) x[h] = load4(from + h * plan.stride) * load4(norms + i);
          transpose(x[0], x[1], x[2], x[3]);
          for (int b = 0; b < 4; ++b) store4(s.operands + (p * kPage + i + b) * kEntry, x[b]);
        }
      }
      for (int quad = 0; quad < side.groups; quad += 4) {
        for (int p = 0; p < count; ++p) {
          for (int t = 0; t < 4; ++t) {
            add_weights(blocks[p] + vector_value_byte(side.size, 16 * t, quad),
                        s.operands + (p * kPage + 16 * t) * kEntry, s.sums + quad * kTable);
          }
        }
      }
    }
    multiply_words<H>(side, s.sums, s.o + first * side.dim);
  });
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
