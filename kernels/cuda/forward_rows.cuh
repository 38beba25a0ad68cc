// Four or eight numbers of a row at a time, between bfloat16 and float32.
#pragma once
#include "kernels/cuda/common.cuh"

namespace oscar::cuda {

OSCAR_DEVICE float2 unpack(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
OSCAR_DEVICE unsigned pack(float lower, float upper) {
  unsigned v;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(v) : "f"(upper), "f"(lower));
  return v;
}
OSCAR_DEVICE void unpack8(float (&to)[8], uint4 v) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack(words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}
OSCAR_DEVICE void store8(void* bf16, const float (&from)[8]) {
  *static_cast<uint4*>(bf16) = make_uint4(pack(from[0], from[1]), pack(from[2], from[3]),
                                          pack(from[4], from[5]), pack(from[6], from[7]));
}
OSCAR_DEVICE void load8(float (&to)[8], const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}
}  // namespace oscar::cuda
