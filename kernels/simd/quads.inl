// Four floats, of which a vector has W / 4, and halves of two bytes.

namespace oscar::OSCAR_LEVEL {
namespace {

typedef float v4 __attribute__((vector_size(16)));
typedef float v4_anywhere __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint32_t vu_anywhere __attribute__((vector_size(4 * W), aligned(1), may_alias));
typedef uint8_t vb_anywhere __attribute__((vector_size(W), aligned(1), may_alias));
typedef int8_t vc_anywhere __attribute__((vector_size(W), aligned(1), may_alias));
typedef uint16_t vh_anywhere __attribute__((vector_size(2 * W), aligned(1), may_alias));

constexpr int kQuads = W / 4;

template <int N>
struct Number {
  static constexpr int value = N;
};

// f(first, Number<H>) for blocks of at most 4 of the query heads that share a KV head.
template <typename F>
OSCAR_INLINE void head_blocks(int group, F f) {
  const int blocks = (group + 3) / 4;
  for (int b = 0, first = 0; b < blocks; ++b) {
    const int count = group / blocks + (b < group % blocks);
    switch (count) {
      case 1:
        f(first, Number<1>());
        break;
      case 2:
        f(first, Number<2>());
        break;
      case 3:
        f(first, Number<3>());
        break;
      default:
        f(first, Number<4>());
    }
    first += count;
  }
}

OSCAR_INLINE v4 load4(const float* p) {
  return *reinterpret_cast<const v4_anywhere*>(p);
}
OSCAR_INLINE void store4(float* p, v4 x) {
  *reinterpret_cast<v4_anywhere*>(p) = x;
}
OSCAR_INLINE vu load_words(const void* p) {
  return *static_cast<const vu_anywhere*>(p);
}

template <int N>
OSCAR_INLINE v4 quad(vf x) {
#if OSCAR_WIDTH == 4
  return x;
#else
  return __builtin_shufflevector(x, x, 4 * N, 4 * N + 1, 4 * N + 2, 4 * N + 3);
#endif
}
OSCAR_INLINE vf repeat(v4 x) {
#if OSCAR_WIDTH == 4
  return x;
#elif OSCAR_WIDTH == 8
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 0, 1, 2, 3);
#else
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
#endif
}
OSCAR_INLINE v4 sum_of_quads(vf x) {
#if OSCAR_WIDTH == 4
  return x;
#elif OSCAR_WIDTH == 8
  return quad<0>(x) + quad<1>(x);
#else
  return (quad<0>(x) + quad<1>(x)) + (quad<2>(x) + quad<3>(x));
#endif
}
OSCAR_INLINE float sum4(v4 x) {
  return (x[0] + x[1]) + (x[2] + x[3]);
}
OSCAR_INLINE float sum(vf x) {
  return sum4(sum_of_quads(x));
}
// The first quad at `p`, the next ones `stride` floats on.
OSCAR_INLINE void store_quads(float* p, [[maybe_unused]] int64_t stride, vf x) {
  store4(p, quad<0>(x));
#if OSCAR_WIDTH >= 8
  store4(p + stride, quad<1>(x));
#endif
#if OSCAR_WIDTH == 16
  store4(p + 2 * stride, quad<2>(x));
  store4(p + 3 * stride, quad<3>(x));
#endif
}

OSCAR_INLINE void transpose(v4& a, v4& b, v4& c, v4& d) {
  const v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
           ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  b = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  c = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
  d = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}

// float16 in the low and in the high half of every lane, exact for finite ones: the product restores the
// exponent, of numbers below 2^-14 too. Infinities and NaNs become finite, so that a weight of 0 is enough
// against tokens that are not visible, whatever their bytes.
OSCAR_INLINE vf low_halves(vi x) {
  return floats((x << 13 & 0x0fffe000) | (x << 16 & INT32_MIN)) * fill(0x1p112f);
}
OSCAR_INLINE vf high_halves(vi x) {
  return floats((x >> 3 & 0x0fffe000) | (x & INT32_MIN)) * fill(0x1p112f);
}

// W bytes, and W signed ones; GCC 12 would widen them one by one.
OSCAR_INLINE vi load_bytes(const uint8_t* p) {
#if OSCAR_WIDTH == 8 && defined(__AVX2__)
  return reinterpret_cast<vi>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif OSCAR_WIDTH == 16 && defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(*reinterpret_cast<const vb_anywhere*>(p), vi);
#endif
}
OSCAR_INLINE vi load_bytes(const int8_t* p) {
#if OSCAR_WIDTH == 8 && defined(__AVX2__)
  return reinterpret_cast<vi>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif OSCAR_WIDTH == 16 && defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(*reinterpret_cast<const vc_anywhere*>(p), vi);
#endif
}

// A row's elements [i, i + W) as float32.
OSCAR_INLINE vf load_row(const float* row, int64_t i) {
  return load(row + i);
}
OSCAR_INLINE vf load_row(const uint16_t* bf16, int64_t i) {
  const vh_anywhere x = *reinterpret_cast<const vh_anywhere*>(bf16 + i);
  return floats(__builtin_convertvector(x, vi) << 16);
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
