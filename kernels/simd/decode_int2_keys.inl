// Logits from INT2 keys in native pages. A lane is a token, and W / 4 lanes of a token hold different
// channels.

namespace oscar::OSCAR_LEVEL {
namespace {

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

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
