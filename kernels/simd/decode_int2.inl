// Decode over native pages of INT2 (kernels/int2.h). No row is ever expanded: a code is cut out of its 32
// bits by a shift and a mask, converted where it stands, 2^(8 j) times too large for byte j, and multiplied
// with what was divided by that beforehand.
//
// Keys: a lane is a token, W / 4 lanes of a token hold different channels. Values: a lane is every fourth
// token of 4 W, and the sums over tokens stay in W lanes until the part ends.

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int kPage = int2::kPageTokens;
constexpr int kDwords = 16 / W;  // vectors of 64 bytes

OSCAR_INLINE float byte_unit(int j) {
  return j == 0 ? 1.0f : j == 1 ? 0x1p-8f : j == 2 ? 0x1p-16f : 0x1p-24f;
}
OSCAR_INLINE vf code_at_byte(vu x, int j) {
  return __builtin_convertvector(reinterpret_cast<vi>(x & (3u << 8 * j)), vf);
}

// scales, minima (groups, 64) of a block, by token.
void int2_metadata(const uint8_t* block, int dim, int groups, float* scales, float* minima) {
  for (int h = 0; h < groups; ++h) {
    const uint8_t* at = block + int2::native_metadata(dim, 0, h);
    for (int half = 0; half < 2; ++half) {
      for (int g = 0; g < 8; g += kQuads, at += 4 * W) {
        const vi x = reinterpret_cast<vi>(load_words(at));
        store_quads(scales + h * kPage + 8 * g + 4 * half, 8, low_halves(x));
        store_quads(minima + h * kPage + 8 * g + 4 * half, 8, high_halves(x));
      }
    }
  }
}

// q of H heads in the order in which int2_keys_page reads it.
template <int H>
void int2_order_q(const float* q, int dim, float* ordered) {
  for (int slice = 0; slice < dim / 64 * 4; ++slice) {
    for (int n = 0; n < kDwords; ++n) {
      for (int j = 0; j < 4; ++j) {
        for (int h = 0; h < H; ++h, ordered += W) {
          for (int l = 0; l < W; ++l) {
            ordered[l] = q[h * dim + 16 * slice + 4 * (n * kQuads + l / 4) + j] * byte_unit(j);
          }
        }
      }
    }
  }
  if (dim % 64 == 0) return;
  for (int n = 0; n < kDwords; ++n) {
    for (int f = 0; f < 4; ++f) {
      for (int j = 0; j < 4; ++j) {
        for (int h = 0; h < H; ++h, ordered += W) {
          for (int l = 0; l < W; ++l) {
            ordered[l] = q[h * dim + dim / 64 * 64 + 8 * f + 4 * ((n * W + l) / 8) + j] * byte_unit(j);
          }
        }
      }
    }
  }
}

// logits[h * stride + token] += sum over channels of scale * code * q. scales (groups, 64).
template <int H>
void int2_keys_page(const uint8_t* codes, int dim, int groups, const float* q, const float* scales,
                    float* logits, int64_t stride) {
  constexpr int N = H == 1 ? 8 : H >= 3 ? 2 : 4;  // quads of tokens: the sums stay in registers
  const int slices = dim / 64 * 4, of_group = dim / groups / 16;
  const float* rest = q;
  for (int first = 0; first < 16; first += N) {
    vf all[H][N] = {}, acc[H][N] = {};
    const float* operand = q;
    for (int slice = 0; slice < slices;) {
      const uint8_t* at = codes + slice / 4 * 1024 + first * 64;
      const int shift = slice % 4 * 2;
      OSCAR_UNROLL
      for (int v = 0; v < kDwords; ++v) {
        vu x[N];
        OSCAR_UNROLL
        for (int n = 0; n < N; ++n) x[n] = load_words(at + 64 * n + 4 * W * v) >> shift;
        OSCAR_UNROLL
        for (int j = 0; j < 4; ++j, operand += H * W) {
          OSCAR_UNROLL
          for (int n = 0; n < N; ++n) {
            const vf code = code_at_byte(x[n], j);
            OSCAR_UNROLL
            for (int h = 0; h < H; ++h) acc[h][n] = fma(code, load(operand + h * W), acc[h][n]);
          }
        }
      }
      ++slice;
      if (slice % of_group != 0 && slice != slices) continue;
      const float* of_tokens = scales + (slice - 1) / of_group * kPage;
      for (int n = 0; n < N; ++n) {
        const int token = 8 * ((first + n) % 8) + 4 * ((first + n) / 8);
        const vf scale = repeat(load4(of_tokens + token));
        for (int h = 0; h < H; ++h) {
          all[h][n] = fma(acc[h][n], scale, all[h][n]);
          acc[h][n] = vf{};
        }
      }
    }
    for (int n = 0; n < N; ++n) {
      const int token = 8 * ((first + n) % 8) + 4 * ((first + n) / 8);
      for (int h = 0; h < H; ++h) {
        float* to = logits + h * stride + token;
        store4(to, load4(to) + sum_of_quads(all[h][n]));
      }
    }
    rest = operand;
  }
  if (dim % 64 == 0) return;

  const float* of_tokens = scales + (groups - 1) * kPage;
  for (int g = 0; g < 8; ++g) {
    const float* operand = rest;
    for (int n = 0; n < kDwords; ++n) {
      const vu x = load_words(codes + 1024 * (dim / 64) + 64 * g + 4 * W * n);
      vf acc[H] = {};
      for (int f = 0; f < 4; ++f) {
        OSCAR_UNROLL
        for (int j = 0; j < 4; ++j, operand += H * W) {
          const vf code = code_at_byte(x >> 2 * f, j);
          for (int h = 0; h < H; ++h) acc[h] = fma(code, load(operand + h * W), acc[h]);
        }
      }
      for (int h = 0; h < H; ++h) {
        float lanes[W];
        store(lanes, acc[h]);
        for (int l = 0; l < W; ++l) {
          const int token = 8 * g + (n * W + l) % 8;
          logits[h * stride + token] += lanes[l] * of_tokens[token];
        }
      }
    }
  }
}

// weights (heads, 64) times scales (64) into [vector of dwords][byte j][H][W], the order of int2_values_page;
// middle (H, W): 1.5 times the sum of each lane.
template <int H>
void int2_order_weights(const float* weights, int64_t stride, const float* scales, float* ordered,
                        float* middle) {
  for (int h = 0; h < H; ++h) {
    v4 sums[kQuads] = {};
    for (int quads = 0; quads < kPage / 16; ++quads) {  // 16 tokens: 4 lanes of 4 bytes
      const float* at = weights + h * stride + 16 * quads;
      v4 x[4];
      for (int l = 0; l < 4; ++l) x[l] = load4(at + 4 * l) * load4(scales + 16 * quads + 4 * l);
      transpose(x[0], x[1], x[2], x[3]);
      const int vector = quads / kQuads, lane = quads % kQuads * 4;
      for (int j = 0; j < 4; ++j) {
        store4(ordered + ((vector * 4 + j) * H + h) * W + lane, x[j] * byte_unit(j));
      }
      sums[quads % kQuads] += (x[0] + x[1]) + (x[2] + x[3]);
    }
    for (int n = 0; n < kQuads; ++n) store4(middle + h * W + 4 * n, sums[n] * 1.5f);
  }
}

// lanes (dim / 4, 4, H, W) += (codes - 1.5) * weights; weights (groups, ...), middles (groups, H, W) as
// above. With codes from 0 on, the sums would grow with the tokens, and what is left of them when the minima
// are added would not.
template <int H>
void int2_values_page(const uint8_t* codes, int dim, int groups, const float* weights, const float* middles,
                      float* lanes) {
  constexpr int F = H >= 3 ? 2 : 4;
  const int size = dim / groups;
  for (int c = 0; c < dim / 4; ++c, codes += 64) {
    const float* of_group = weights + c / 8 * 32 / size * (kPage * H);
    const float* middle = middles + c / 8 * 32 / size * (H * W);
    for (int first = 0; first < 4; first += F, lanes += F * H * W) {
      vf acc[F][H];
      OSCAR_UNROLL
      for (int f = 0; f < F; ++f) {
        OSCAR_UNROLL
        for (int h = 0; h < H; ++h) acc[f][h] = load(lanes + (f * H + h) * W) - load(middle + h * W);
      }
      const float* operand = of_group;
      OSCAR_UNROLL
      for (int v = 0; v < kDwords; ++v) {
        const vu x = load_words(codes + 4 * W * v) >> 2 * first;
        OSCAR_UNROLL
        for (int j = 0; j < 4; ++j, operand += H * W) {
          OSCAR_UNROLL
          for (int f = 0; f < F; ++f) {
            const vf code = code_at_byte(x >> 2 * f, j);
            OSCAR_UNROLL
            for (int h = 0; h < H; ++h) acc[f][h] = fma(code, load(operand + h * W), acc[f][h]);
          }
        }
      }
      OSCAR_UNROLL
      for (int f = 0; f < F; ++f) {
        OSCAR_UNROLL
        for (int h = 0; h < H; ++h) store(lanes + (f * H + h) * W, acc[f][h]);
      }
    }
  }
}

// Where the block of one side of a page is.
OSCAR_INLINE const uint8_t* page_block(const DecodePart& part, const PartPlan& plan, bool keys,
                                       int32_t page) {
  return part.inputs->pages + int64_t{part.table[page]} * plan.page_bytes +
         part.head * (plan.k_bytes + plan.v_bytes) + (keys ? 0 : plan.k_bytes);
}

void int2_keys(const DecodePart& part, const PartPlan& plan, const float* q, DecodeScratch& s) {
  const int dim = part.format->dim, groups = part.format->k.groups, size = dim / groups;
  head_blocks(part.format->group, [&](int first, auto heads) {
    constexpr int H = heads.value;
    int2_order_q<H>(q + first * dim, dim, s.operands);
    float sums[H][8];
    for (int h = 0; h < H; ++h) {
      for (int g = 0; g < groups; ++g) {
        vf total{};
        for (int i = g * size; i < (g + 1) * size; i += W) total += load(q + (first + h) * dim + i);
        sums[h][g] = sum(total);
      }
    }
    float* logits = s.logits + first * plan.stride;
    for (int32_t page = plan.begin / kPage; page * kPage < part.end; ++page, logits += kPage) {
      const uint8_t* block = page_block(part, plan, true, page);
      int2_metadata(block, dim, groups, s.scales, s.minima);
      for (int h = 0; h < H; ++h) {
        for (int t = 0; t < kPage; t += W) {
          vf x{};
          for (int g = 0; g < groups; ++g) x = fma(load(s.minima + g * kPage + t), fill(sums[h][g]), x);
          store(logits + h * plan.stride + t, x);
        }
      }
      int2_keys_page<H>(block, dim, groups, s.operands, s.scales, logits, plan.stride);
    }
  });
}

void int2_values(const DecodePart& part, const PartPlan& plan, DecodeScratch& s) {
  const int dim = part.format->dim, groups = part.format->v.groups, size = dim / groups;
  head_blocks(part.format->group, [&](int first, auto heads) {
    constexpr int H = heads.value;
    std::memset(s.lanes, 0, sizeof(float) * dim * H * W);
    vf all[H][8] = {};  // what 1.5 stands for
    float middles[8 * H * W];
    const float* weights = s.logits + first * plan.stride;
    for (int32_t page = plan.begin / kPage; page * kPage < part.end; ++page, weights += kPage) {
      const uint8_t* block = page_block(part, plan, false, page);
      int2_metadata(block, dim, groups, s.scales, s.minima);
      if (page * kPage < part.first || page * kPage + kPage > part.end) {
        for (int t = 0; t < kPage; ++t) {  // what is not visible may be a NaN
          if (page * kPage + t >= part.first && page * kPage + t < part.end) continue;
          for (int g = 0; g < groups; ++g) s.scales[g * kPage + t] = s.minima[g * kPage + t] = 0;
        }
      }
      for (int g = 0; g < groups; ++g) {
        for (int t = 0; t < kPage; t += W) {
          const vf middle = fma(load(s.scales + g * kPage + t), fill(1.5f), load(s.minima + g * kPage + t));
          for (int h = 0; h < H; ++h) all[h][g] = fma(load(weights + h * plan.stride + t), middle, all[h][g]);
        }
        int2_order_weights<H>(weights, plan.stride, s.scales + g * kPage, s.operands + g * kPage * H,
                              middles + g * H * W);
      }
      int2_values_page<H>(block, dim, groups, s.operands, middles, s.lanes);
    }
    for (int i = 0; i < dim; ++i) {  // channel i = 32 u + 8 f + g is lane set (8 u + g, f)
      for (int h = 0; h < H; ++h) {
        const int at = ((i / 32 * 8 + i % 8) * 4 + i % 32 / 8) * H + h;
        s.o[(first + h) * dim + i] = sum(load(s.lanes + at * W)) + sum(all[h][i / size]);
      }
    }
  });
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
