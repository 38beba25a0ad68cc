// Decode over native pages of bit planes (kernels/plane_pages.h), as decode_int2.inl does: bits are cut out of
// their 32 by a shift and a mask and converted where they stand. A slice is 16 places of keys, or 8 of values:
// one field of every byte of a chunk.

namespace oscar::OSCAR_LEVEL {
namespace {

struct PlaneSide {
  const int (&planes)[kPlanes];
  const float* steps;  // (dim) of the KV head
  const uint8_t* bits;
  int dim, pairs, singles;  // chunks
  bool norm;
  PlaneSide(const DecodePart& part, bool keys)
      : planes(keys ? part.format->k.planes : part.format->v.planes) {
    const SideFormat& side = keys ? part.format->k : part.format->v;
    const PlaneLevels& levels = keys ? part.inputs->k_levels : part.inputs->v_levels;
    dim = part.format->dim;
    steps = levels.steps + int64_t{part.head} * dim;
    bits = levels.bits + int64_t{part.head} * dim;
    pairs = pair_chunks(planes);
    singles = single_chunks(planes);
    norm = side.norm;
  }
  int places() const { return kChunkPairs * pairs + kChunkSingles * singles; }
  // Of place s, pairs before singles.
  PlanePlace place(int s) const {
    return s < kChunkPairs * pairs ? pair_place(planes, s) : single_place(planes, s - kChunkPairs * pairs);
  }
  // What a place adds at most, in steps of its channel: its bits that the head has.
  int most(const PlanePlace& at, bool pair) const {
    const int own = bits[at.channel] - at.plane, width = pair ? 2 : 1;
    return own <= 0 ? 0 : ((1 << (own < width ? own : width)) - 1) << at.plane;
  }
  void token_norms(const uint8_t* block, float* norms) const {
    for (int t = 0; t < kPage; t += W) {
      vf x = fill(1.0f);
      if (norm) {
        const auto halves = *reinterpret_cast<const vh_anywhere*>(block + plane_norm_byte(planes, t));
        x = low_halves(__builtin_convertvector(halves, vi));
      }
      store(norms + t, x);
    }
  }
};

OSCAR_INLINE vf bits_at_byte(vu x, uint32_t mask, int j) {
  return __builtin_convertvector(reinterpret_cast<vi>(x & (mask << 8 * j)), vf);
}

// What the codes of a place are multiplied with, of H heads in the order in which plane_keys_page reads it;
// middles (H): what codes that count from 0 have too much.
template <int H>
void plane_order_q(const PlaneSide& side, const float* q, float* ordered, float* middles) {
  for (int h = 0; h < H; ++h) middles[h] = 0;
  float x[H][16];
  for (int first = 0; first < side.places(); first += 16) {
    const bool pair = first < kChunkPairs * side.pairs;
    for (int i = 0; i < 16; ++i) {
      const PlanePlace at = side.place(first + i);
      for (int h = 0; h < H; ++h) {
        x[h][i] = 0;
        if (at.channel < 0) continue;
        const float product = q[h * side.dim + at.channel] * side.steps[at.channel];
        x[h][i] = product * static_cast<float>(1 << at.plane);
        middles[h] += product * (0.5f * static_cast<float>(side.most(at, pair)));
      }
    }
    for (int n = 0; n < kDwords; ++n) {
      for (int j = 0; j < 4; ++j) {
        for (int h = 0; h < H; ++h, ordered += W) {
          for (int l = 0; l < W; ++l) ordered[l] = x[h][4 * (n * kQuads + l / 4) + j] * byte_unit(j);
        }
      }
    }
  }
}

// logits[h * stride + token] += sum over places of code * q. A lane is a token, of every other four W / 4.
template <int H>
void plane_keys_page(const PlaneSide& side, const uint8_t* codes, const float* q, float* logits,
                     int64_t stride) {
  constexpr int N = H == 1 ? 8 : H >= 3 ? 2 : 4;  // quads of tokens: the sums stay in registers
  for (int first = 0; first < 16; first += N) {   // those of even tokens first
    const int half = first / 8, g = first % 8;
    vf acc[H][N] = {};
    const float* operand = q;
    const uint8_t* at = codes + 64 * g;
    for (int chunk = 0; chunk < side.pairs + side.singles; ++chunk, at += kPlaneChunk) {
      const uint32_t mask = chunk < side.pairs ? 3 : 1;
      const int width = chunk < side.pairs ? 2 : 1;
      for (int shift = 4 * half; shift < 4 * half + 4; shift += width) {
        OSCAR_UNROLL
        for (int v = 0; v < kDwords; ++v) {
          vu x[N];
          OSCAR_UNROLL
          for (int n = 0; n < N; ++n) x[n] = load_words(at + 64 * n + 4 * W * v) >> shift;
          OSCAR_UNROLL
          for (int j = 0; j < 4; ++j, operand += H * W) {
            OSCAR_UNROLL
            for (int n = 0; n < N; ++n) {
              const vf code = bits_at_byte(x[n], mask, j);
              OSCAR_UNROLL
              for (int h = 0; h < H; ++h) acc[h][n] = fma(code, load(operand + h * W), acc[h][n]);
            }
          }
        }
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int h = 0; h < H; ++h) {
        const v4 sums = sum_of_quads(acc[h][n]);
        float* to = logits + h * stride + 8 * (g + n) + half;
        for (int i = 0; i < 4; ++i) to[2 * i] += sums[i];
      }
    }
  }
}

void plane_keys(const DecodePart& part, const PartPlan& plan, const float* q, DecodeScratch& s) {
  const PlaneSide side(part, true);
  head_blocks(part.format->group, [&](int first, auto heads) {
    constexpr int H = heads.value;
    float middles[H];
    plane_order_q<H>(side, q + first * side.dim, s.operands, middles);
    float* logits = s.logits + first * plan.stride;
    for (int32_t page = plan.begin / kPage; page * kPage < part.end; ++page, logits += kPage) {
      const uint8_t* block = page_block(part, plan, true, page);
      for (int h = 0; h < H; ++h) {
        for (int t = 0; t < kPage; t += W) store(logits + h * plan.stride + t, fill(-middles[h]));
      }
      plane_keys_page<H>(side, block, s.operands, logits, plan.stride);
      if (!side.norm) continue;
      side.token_norms(block, s.scales);
      for (int h = 0; h < H; ++h) {
        for (int t = 0; t < kPage; t += W) {
          float* at = logits + h * plan.stride + t;
          store(at, load(at) * load(s.scales + t));
        }
      }
    }
  });
}

// lanes (places, H, W) += (codes - middle of a place that is full) * weights; weights and middle as
// int2_order_weights() leaves them.
template <int H>
void plane_values_page(const PlaneSide& side, const uint8_t* codes, const float* weights, const float* middle,
                       float* lanes) {
  constexpr int F = H >= 3 ? 2 : 4;
  for (int chunk = 0; chunk < side.pairs + side.singles; ++chunk) {
    const bool pair = chunk < side.pairs;
    const uint32_t mask = pair ? 3 : 1;
    const int width = pair ? 2 : 1, fields = 8 / width;
    const vf share = fill(pair ? 1.0f : 1.0f / 3);  // of 1.5
    for (int g = 0; g < 8; ++g, codes += 64) {
      for (int first = 0; first < fields; first += F) {
        float* to = lanes + first * 8 * H * W;  // place 8 f + g
        vf acc[F][H];
        OSCAR_UNROLL
        for (int f = 0; f < F; ++f) {
          OSCAR_UNROLL
          for (int h = 0; h < H; ++h)
            acc[f][h] = load(to + (8 * f * H + h) * W) - share * load(middle + h * W);
        }
        const float* operand = weights;
        OSCAR_UNROLL
        for (int v = 0; v < kDwords; ++v) {
          const vu x = load_words(codes + 4 * W * v) >> width * first;
          OSCAR_UNROLL
          for (int j = 0; j < 4; ++j, operand += H * W) {
            OSCAR_UNROLL
            for (int f = 0; f < F; ++f) {
              const vf code = bits_at_byte(x >> width * f, mask, j);
              OSCAR_UNROLL
              for (int h = 0; h < H; ++h) acc[f][h] = fma(code, load(operand + h * W), acc[f][h]);
            }
          }
        }
        OSCAR_UNROLL
        for (int f = 0; f < F; ++f) {
          OSCAR_UNROLL
          for (int h = 0; h < H; ++h) store(to + (8 * f * H + h) * W, acc[f][h]);
        }
      }
      lanes += H * W;
    }
    lanes += (fields - 1) * 8 * H * W;
  }
}

void plane_values(const DecodePart& part, const PartPlan& plan, DecodeScratch& s) {
  const PlaneSide side(part, false);
  const int dim = side.dim;
  head_blocks(part.format->group, [&](int first, auto heads) {
    constexpr int H = heads.value;
    std::memset(s.lanes, 0, sizeof(float) * side.places() * H * W);
    vf mass[H] = {};
    float middle[H * W];
    const float* weights = s.logits + first * plan.stride;
    for (int32_t page = plan.begin / kPage; page * kPage < part.end; ++page, weights += kPage) {
      const uint8_t* block = page_block(part, plan, false, page);
      side.token_norms(block, s.scales);
      for (int h = 0; h < H; ++h) {
        for (int t = 0; t < kPage; t += W)
          mass[h] = fma(load(weights + h * plan.stride + t), load(s.scales + t), mass[h]);
      }
      int2_order_weights<H>(weights, plan.stride, s.scales, s.operands, middle);
      plane_values_page<H>(side, block, s.operands, middle, s.lanes);
    }
    for (int h = 0; h < H; ++h) {
      float* o = s.o + (first + h) * dim;
      const float all = sum(mass[h]);
      for (int at = 0; at < side.places(); ++at) {
        const PlanePlace place = side.place(at);
        const bool pair = at < kChunkPairs * side.pairs;
        if (place.channel < 0 || side.most(place, pair) == 0) continue;
        const auto weight = static_cast<float>(1 << place.plane);
        // The middle of what the head has of this place is lower where it has fewer bits.
        const float above = weight * (pair ? 1.5f : 0.5f) - 0.5f * static_cast<float>(side.most(place, pair));
        o[place.channel] += weight * sum(load(s.lanes + (at * H + h) * W)) + above * all;
      }
      for (int i = 0; i < dim; ++i) o[i] *= side.steps[i];
    }
  });
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
