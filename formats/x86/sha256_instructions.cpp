#include <cpuid.h>
#include <immintrin.h>

#include "formats/sha256_blocks.h"

namespace oscar {
namespace {

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) != 0;
}

// Intel, "New instructions supporting the Secure Hash Algorithm", 2013: state as (A, B, E, F) and (C, D, G, H).
__attribute__((target("sha,sse4.1"))) void blocks(uint32_t* state, const std::byte* p, size_t count) {
  const auto load = [](const void* from) __attribute__((target("sha,sse4.1"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xb1), hgfe = _mm_shuffle_epi32(load(state + 4), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, cdab, 0xf0);
  for (; count > 0; --count, p += 64) {
    const __m128i before[2] = {abef, cdgh};
    __m128i w[4];
    for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(load(p + 16 * i), big_endian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i in = _mm_add_epi32(w[i % 4], load(kSha256Round.data() + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, in);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(in, 0x0e));
      if (i >= 12) continue;
      const __m128i last = w[(i + 3) % 4], seven_back = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
      const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), seven_back);
      w[i % 4] = _mm_sha256msg2_epu32(sum, last);
    }
    abef = _mm_add_epi32(abef, before[0]);
    cdgh = _mm_add_epi32(cdgh, before[1]);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace

Sha256Blocks* sha256_instructions() {
  static const bool there = has_instructions();
  return there ? blocks : nullptr;
}

}  // namespace oscar
