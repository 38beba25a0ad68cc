// The blocks and panels of the AVX-512 level on machines that have no AVX-512: vectors of 16 floats that the
// compiler takes apart. Only its few intrinsics stay untested there.
#define OSCAR_LEVEL wide
#define OSCAR_WIDTH 16
#include "kernels/simd/kernels.inl"

namespace oscar::test {

static constexpr KernelTable table = wide::kernel_table("wide", [] { return true; });
const KernelTable& wide_level() {
  return table;
}

}  // namespace oscar::test
