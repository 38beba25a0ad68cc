// Tables of words in shared memory, and how a lane finds its word: one byte permutation makes the address.
//
// A table has 256 bytes for each code, so that the code is byte 1 of the address; byte 0 is a constant of the
// lane, which chooses group and replica so that the lanes of one load never meet in a bank; the rest is the
// immediate of the load.
#pragma once
#include "kernels/cuda/common.cuh"

namespace oscar::cuda {

// Where the tables begin in shared memory. It must be known to the compiler: the launcher sees to the room
// before it.
inline constexpr uint32_t kTables = 1024;
inline constexpr uint32_t kRow = 256;  // bytes a code
inline constexpr uint32_t kTable =
    256 * kRow;  // bytes of a table; what does not fit into a row is in a second table
inline constexpr int kBlockWarps = 16, kBlockThreads = 32 * kBlockWarps;

OSCAR_DEVICE void store_shared4(uint32_t a, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// Byte `code` (0..3) of `codes` above byte `lane_byte` (0..2) of lane_bytes, whose byte 3 is 0.
OSCAR_DEVICE uint32_t table_address(unsigned codes, int code, unsigned lane_bytes, int lane_byte) {
  return permute_bytes(codes, lane_bytes,
                       0x7704u | static_cast<unsigned>(code) << 4 | static_cast<unsigned>(lane_byte));
}

// threadIdx.x, read again: what loops outside the page loop derive from it must not occupy registers inside.
OSCAR_DEVICE int thread_again() {
  int x;
  asm volatile("mov.u32 %0,%%tid.x;" : "=r"(x));
  return x;
}
// Keeps a value in its register: the compiler would rather compute it anew in every round.
OSCAR_DEVICE void keep(unsigned& v) {
  asm volatile("" : "+r"(v));
}

// Four words of four channels of consecutive tokens into one word a channel.
OSCAR_DEVICE void transpose_bytes(const unsigned (&words)[4], unsigned* channels) {
  const unsigned low01 = permute_bytes(words[0], words[1], 0x5140),
                 high01 = permute_bytes(words[0], words[1], 0x7362);
  const unsigned low23 = permute_bytes(words[2], words[3], 0x5140),
                 high23 = permute_bytes(words[2], words[3], 0x7362);
  channels[0] = permute_bytes(low01, low23, 0x5410);
  channels[1] = permute_bytes(low01, low23, 0x7632);
  channels[2] = permute_bytes(high01, high23, 0x5410);
  channels[3] = permute_bytes(high01, high23, 0x7632);
}

// x * scale, at most 32000, as sixteen-bit fixed point in two signed bytes, high * 256 + low: the high or the
// low bytes of four. Added to 1.5 * 2^23 the integer is in the lowest bits of the float; 128 more make its
// high byte the one that goes with a signed low byte.
OSCAR_DEVICE unsigned pack_limbs(const float4& x, float scale, bool low) {
  const float magic = low ? 12582912.f : 12582912.f + 128.f;
  const unsigned pair = low ? 0x0040u : 0x0051u;
  const unsigned ab =
      permute_bytes(__float_as_uint(fmaf(x.x, scale, magic)), __float_as_uint(fmaf(x.y, scale, magic)), pair);
  const unsigned cd =
      permute_bytes(__float_as_uint(fmaf(x.z, scale, magic)), __float_as_uint(fmaf(x.w, scale, magic)), pair);
  return permute_bytes(ab, cd, 0x5410);
}
OSCAR_DEVICE float limbs(int high, int low) {
  return static_cast<float>(high * 256 + low);
}

// A product's two rows, {high, low} in neighbouring columns, onto two channels of the output.
OSCAR_DEVICE void add(float (&out)[2], const int (&sums)[4], float scale) {
  out[0] = fmaf(limbs(sums[0], sums[1]), scale, out[0]);
  out[1] = fmaf(limbs(sums[2], sums[3]), scale, out[1]);
}

OSCAR_DEVICE float2 halves(unsigned bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
OSCAR_DEVICE float4 times(const float4& v, float f) {
  return make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
}
OSCAR_DEVICE float largest(const float4& v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

}  // namespace oscar::cuda
