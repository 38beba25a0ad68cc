#include "formats/sha256_blocks.h"

#include <bit>
#include <cstring>

namespace oscar {

// FIPS 180-4, 6.2.2.
static void one_block(uint32_t* state, const std::byte* p) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) {
    uint32_t word;
    std::memcpy(&word, p + 4 * t, 4);
    w[t] = __builtin_bswap32(word);
  }
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = s1 + w[t - 7] + s0 + w[t - 16];
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
           h = state[7];
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                        kSha256Round[t] + w[t];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> sum{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += sum[i];
}

void sha256_blocks_plain(uint32_t* state, const std::byte* p, size_t count) {
  for (; count > 0; --count, p += 64) one_block(state, p);
}

void sha256_blocks(uint32_t* state, const std::byte* p, size_t count) {
  Sha256Blocks* const instructions = sha256_instructions();
  (instructions ? instructions : sha256_blocks_plain)(state, p, count);
}

}  // namespace oscar
