// Values from vector codes: the weights of 4 query heads are summed by group and code, and those sums
// multiply the words once at the end.

namespace oscar::OSCAR_LEVEL {
namespace {

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
  const auto low = __builtin_shufflevector(at(0), at(1), 0, 1, 2, 3, 4, 5, 6, 7),
             high = __builtin_shufflevector(at(2), at(3), 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
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
  if (part.end - part.first < kShortPart) {
    const RowsOfPage rows(s.rows, side.dim);
    for (int32_t page = 0; page < pages; ++page) {
      const uint8_t* block = page_block(part, plan, false, first_page + page);
      token_norms(side, block, norms);
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
        token_norms(side, blocks[p], norms);
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
