// Decode over native pages of INT2 (kernels/int2.h): what keys and values share. No row is ever expanded: a
// code is cut out of its 32 bits by a shift and a mask, converted where it stands, 2^(8 j) times too large
// for byte j, and multiplied with what was divided by that beforehand.

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

// Where the block of one side of a page is.
OSCAR_INLINE const uint8_t* page_block(const DecodePart& part, const PartPlan& plan, bool keys,
                                       int32_t page) {
  return part.inputs->pages + int64_t{part.table[page]} * plan.page_bytes +
         part.head * (plan.k_bytes + plan.v_bytes) + (keys ? 0 : plan.k_bytes);
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
