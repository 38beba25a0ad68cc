// Plain vector extensions: any machine.
#define OSCAR_LEVEL generic
#define OSCAR_WIDTH 4
#include "kernels/simd/kernels.inl"

namespace oscar {

static constexpr KernelTable table = generic::kernel_table("generic", [] { return true; });
const KernelTable* const generic_kernels = &table;

}  // namespace oscar
