// Vectors of OSCAR_WIDTH floats: 4, 8 with intrinsics for AVX2 and FMA, 16 for AVX-512; any of them on any
// machine. Included once by each cpu_<level>.cpp, which is compiled with the flags of its level. Nothing here
// may instantiate a template of the standard library: the linker would be free to use the copy of the highest
// level everywhere.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oscar::OSCAR_LEVEL {
namespace {

constexpr int W = OSCAR_WIDTH;
// Rows x vectors of an accumulator block: all of it, one broadcast and NR operands stay in registers.
constexpr int MR = W == 16 ? 12 : 6, NR = 2, P = NR * W;

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef float vf_anywhere __attribute__((vector_size(4 * W), aligned(4), may_alias));

typedef int32_t vi_anywhere __attribute__((vector_size(4 * W), aligned(4), may_alias));

#define OSCAR_INLINE inline __attribute__((always_inline))
#define OSCAR_UNROLL _Pragma("GCC unroll 16")

OSCAR_INLINE vf load(const float* p) {
  return *reinterpret_cast<const vf_anywhere*>(p);
}
OSCAR_INLINE void store(float* p, vf x) {
  *reinterpret_cast<vf_anywhere*>(p) = x;
}
OSCAR_INLINE vi load_bits(const int32_t* p) {
  return *reinterpret_cast<const vi_anywhere*>(p);
}
OSCAR_INLINE void store_bits(int32_t* p, vi x) {
  *reinterpret_cast<vi_anywhere*>(p) = x;
}
OSCAR_INLINE vi bits(vf x) {
  return reinterpret_cast<vi>(x);
}
OSCAR_INLINE vf floats(vi x) {
  return reinterpret_cast<vf>(x);
}

// larger(a, b) is a > b ? a : b: a NaN in `a` is dropped, one in `b` stays; smaller likewise. mask_bits: one
// bit a lane of a comparison, lane 0 lowest.
#if OSCAR_WIDTH == 16 && defined(__AVX512F__)
OSCAR_INLINE vf fill(float x) {
  return _mm512_set1_ps(x);
}
OSCAR_INLINE vi fill(int32_t x) {
  return reinterpret_cast<vi>(_mm512_set1_epi32(x));
}
OSCAR_INLINE vf fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
OSCAR_INLINE vf larger(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
OSCAR_INLINE vf smaller(vf a, vf b) {
  return _mm512_min_ps(a, b);
}
OSCAR_INLINE float highest(vf x) {
  return _mm512_reduce_max_ps(x);
}
OSCAR_INLINE uint32_t mask_bits(vi x) {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(x));
}
#elif OSCAR_WIDTH == 8 && defined(__AVX2__) && defined(__FMA__)
OSCAR_INLINE vf fill(float x) {
  return _mm256_set1_ps(x);
}
OSCAR_INLINE vi fill(int32_t x) {
  return reinterpret_cast<vi>(_mm256_set1_epi32(x));
}
OSCAR_INLINE vf fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
OSCAR_INLINE vf larger(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
OSCAR_INLINE vf smaller(vf a, vf b) {
  return _mm256_min_ps(a, b);
}
OSCAR_INLINE float highest(vf x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
OSCAR_INLINE uint32_t mask_bits(vi x) {
  return static_cast<uint32_t>(_mm256_movemask_ps(floats(x)));
}
#else
template <typename V, typename T>
OSCAR_INLINE V same(T x) {
  V v;
  for (int i = 0; i < W; ++i) v[i] = x;
  return v;
}
OSCAR_INLINE vf fill(float x) {
  return same<vf>(x);
}
OSCAR_INLINE vi fill(int32_t x) {
  return same<vi>(x);
}
OSCAR_INLINE vf fma(vf a, vf b, vf c) {
  return a * b + c;
}
OSCAR_INLINE vf larger(vf a, vf b) {
  return a > b ? a : b;
}
OSCAR_INLINE vf smaller(vf a, vf b) {
  return a < b ? a : b;
}
OSCAR_INLINE float highest(vf x) {
  float high = x[0];
  for (int i = 1; i < W; ++i) high = x[i] > high ? x[i] : high;
  return high;
}
OSCAR_INLINE uint32_t mask_bits(vi x) {
#if OSCAR_WIDTH == 4 && defined(__SSE__)
  return static_cast<uint32_t>(_mm_movemask_ps(floats(x)));
#else
  uint32_t mask = 0;
  for (int i = 0; i < W; ++i) mask |= (x[i] & 1u) << i;
  return mask;
#endif
}
#endif

OSCAR_INLINE double total(vf x) {
  double sum = 0;
  for (int i = 0; i < W; ++i) sum += x[i];
  return sum;
}
OSCAR_INLINE vi lanes() {
  vi x{};
  for (int i = 0; i < W; ++i) x[i] = i;
  return x;
}

// p[n] = e^x[n] for x in [-87, 88] to about 1e-7 relative, e^0 = 1 exactly: 2^f on [-1/2, 1/2] is a minimax
// polynomial of degree 6, and adding 1.5 * 2^23 rounds to an integer in the low bits. N at a time and stage
// by stage, because one such chain after the other fills the scheduler of the CPU with operations that wait.
constexpr float kLowest = -87.0f;  // e^-87 = 1.6e-38: the smallest normal numbers
template <int N>
OSCAR_INLINE void exponentials(const vf (&x)[N], vf (&p)[N]) {
  const vf magic = fill(12582912.0f);
  vf f[N], f2[N];
  vi exponent[N];
#define OSCAR_EACH OSCAR_UNROLL for (int n = 0; n < N; ++n)
  OSCAR_EACH f[n] = x[n] * fill(1.44269504f);
  OSCAR_EACH p[n] = f[n] + magic;
  OSCAR_EACH exponent[n] = bits(p[n]) << 23;
  OSCAR_EACH f[n] = f[n] - (p[n] - magic);
  OSCAR_EACH f2[n] = f[n] * f[n];
  OSCAR_EACH p[n] = fma(f[n], fill(1.33988748e-3f), fill(9.61843737e-3f));
  OSCAR_EACH p[n] = fma(f2[n], fill(1.53533610e-4f), p[n]);
  OSCAR_EACH p[n] = fma(f2[n], p[n], fma(f[n], fill(5.55033247e-2f), fill(2.40226479e-1f)));
  OSCAR_EACH p[n] = fma(f2[n], p[n], fma(f[n], fill(6.93147203e-1f), fill(1.0f)));
  OSCAR_EACH p[n] = floats(bits(p[n]) + exponent[n]);
#undef OSCAR_EACH
}

// l[n] becomes cap tanh(l[n] / cap) to about 3e-7 relative: 1 - 2 / (e^2y + 1), and for y < 0.3, where that
// cancels, its series.
template <int N>
OSCAR_INLINE void soft_cap(vf (&l)[N], float cap) {
  vf y[N], twice[N], power[N];
  for (int n = 0; n < N; ++n) {
    y[n] = floats(bits(l[n]) & fill(0x7fffffff)) * fill(1 / cap);
    twice[n] = smaller(y[n] + y[n], fill(88.0f));
  }
  exponentials(twice, power);
  for (int n = 0; n < N; ++n) {
    const vf far = fill(1.0f) - fill(2.0f) / (power[n] + fill(1.0f)), y2 = y[n] * y[n];
    vf near = fma(y2, fill(62.0f / 2835), fill(-17.0f / 315));
    near = fma(y2, near, fill(2.0f / 15));
    near = fma(y2, near, fill(-1.0f / 3));
    near = fma(y[n] * y2, near, y[n]);
    const vf tanh = (y[n] < fill(0.3f)) ? near : far;
    l[n] = floats(bits(tanh * fill(cap)) | (bits(l[n]) & fill(INT32_MIN)));
  }
}

// log(e^a + e^b)
inline double log_add(double a, double b) {
  const double high = a > b ? a : b;
  return high + std::log(std::exp(a - high) + std::exp(b - high));
}

// Squares of tiny probabilities would otherwise run at the speed of denormal numbers.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | 0x8040);
  }
  ~FlushDenormals() {
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#else
  FlushDenormals() {}
#endif
};

// Cache-line aligned memory, zeroed.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count) : data_(nullptr) {
    const size_t bytes = ((count > 0 ? count : 1) * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (!data_) throw std::bad_alloc();
    std::memset(data_, 0, bytes);
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  operator T*() const { return data_; }

 private:
  T* data_;
};

OSCAR_INLINE int64_t lower(int64_t a, int64_t b) {
  return a < b ? a : b;
}
OSCAR_INLINE int64_t upper(int64_t a, int64_t b) {
  return a > b ? a : b;
}
OSCAR_INLINE int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// acc[i][v] += sum over d of a(i, d) * b[d][v]: a(i, d) = a[i * AI + d * AD], b = (depth, P) packed.
template <int AI, int AD>
OSCAR_INLINE void multiply(const float* a, const float* b, int64_t depth, vf (&acc)[MR][NR]) {
  for (int64_t d = 0; d < depth; ++d, a += AD, b += P) {
    vf operand[NR];
    OSCAR_UNROLL
    for (int v = 0; v < NR; ++v) operand[v] = load(b + v * W);
    OSCAR_UNROLL
    for (int i = 0; i < MR; ++i) {
      const vf x = fill(a[i * AI]);
      OSCAR_UNROLL
      for (int v = 0; v < NR; ++v) acc[i][v] = fma(x, operand[v], acc[i][v]);
    }
  }
}

// Rows [0, count) of a key matrix as one panel (dim, P): vector over keys. The rest of the panel is left
// alone.
void pack_panel(const float* rows, int64_t stride, int64_t count, int dim, float* panel) {
  for (int64_t s = 0; s < count; ++s) {
    for (int d = 0; d < dim; ++d) panel[d * P + s] = rows[s * stride + d];
  }
}

}  // namespace
}  // namespace oscar::OSCAR_LEVEL
