// INT2 values in native pages. A lane is every fourth token of 4 W, and the sums over tokens stay in W lanes
// until the part ends.

namespace oscar::OSCAR_LEVEL {
namespace {

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
