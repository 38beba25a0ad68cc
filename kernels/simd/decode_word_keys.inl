// Logits from vector codes: what every word of every group adds to the logits of 4 query heads is tabulated
// once, and a token adds up its entries.

namespace oscar::OSCAR_LEVEL {
namespace {

// Lane h of every quad: the sum of that quad of x[h].
OSCAR_INLINE vf quad_sums(const vf (&x)[4]) {
#if OSCAR_WIDTH == 4
  v4 a = x[0], b = x[1], c = x[2], d = x[3];
  transpose(a, b, c, d);
  return (a + b) + (c + d);
#elif OSCAR_WIDTH == 8
  return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
#else
#define OSCAR_LOW(a, b) \
  __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define OSCAR_HIGH(a, b) \
  __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
  const vf ab = OSCAR_LOW(x[0], x[1]) + OSCAR_HIGH(x[0], x[1]),
           cd = OSCAR_LOW(x[2], x[3]) + OSCAR_HIGH(x[2], x[3]);
#undef OSCAR_LOW
#undef OSCAR_HIGH
  return __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
#endif
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

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
