// Which SIMD level the kernels run at: chosen once from the CPU, lowered by OSCAR_CPU=generic|avx2|avx512 (tests, bug hunts).
#pragma once
#include <string_view>

namespace oscar {

std::string_view cpu_level();  // "generic", "avx2", "avx512"
bool native_bf16();            // the CPU multiplies bfloat16 itself (AVX-512 BF16)

}  // namespace oscar
