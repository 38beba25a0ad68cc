// Compiled with the flags of its level (CMakeLists.txt); without them, on another architecture, the level
// does not exist.
#include "kernels/levels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define OSCAR_LEVEL avx512
#define OSCAR_WIDTH 16
#include "kernels/simd/kernels.inl"

namespace oscar {

static bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
static constexpr KernelTable table = avx512::kernel_table("avx512", supported);
const KernelTable* const avx512_kernels = &table;

}  // namespace oscar
#else
const oscar::KernelTable* const oscar::avx512_kernels = nullptr;
#endif
