// Compiled with the flags of its level (CMakeLists.txt); without them, on another architecture, the level
// does not exist.
#include "kernels/levels.h"

#if defined(__AVX2__) && defined(__FMA__)
#define OSCAR_LEVEL avx2
#define OSCAR_WIDTH 8
#include "kernels/simd/kernels.inl"

namespace oscar {

static bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static constexpr KernelTable table = avx2::kernel_table("avx2", supported);
const KernelTable* const avx2_kernels = &table;

}  // namespace oscar
#else
const oscar::KernelTable* const oscar::avx2_kernels = nullptr;
#endif
