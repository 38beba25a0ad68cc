#include "kernels/cpu.h"

namespace oscar {

bool native_bf16() {
#if defined(__x86_64__)
  static const bool native = __builtin_cpu_supports("avx512bf16") != 0;
  return native;
#else
  return false;
#endif
}

}  // namespace oscar
