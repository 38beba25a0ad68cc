// Tiles of 64 rows as tensor cores of Hopper want them, and the product of two of them; mma.sync elsewhere.
//
// A tile is blocks of 64 channels, each 64 rows of 128 bytes, 1024-byte aligned, with the 16-byte pieces of a row permuted
// by the row's low bits (the 128-byte swizzle of wgmma). Channels past the last are zeros.
#pragma once
#include "kernels/cuda/score_stats.cuh"

namespace oscar::cuda {

OSCAR_DEVICE uint32_t tile_piece(int row, int piece) {
  return row * 128 + (piece ^ (row & 7)) * 16;
}
OSCAR_DEVICE void store_shared4(uint32_t a, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
OSCAR_DEVICE void store_shared(uint32_t a, unsigned v) {
  asm volatile("st.shared.u32 [%0],%1;" ::"r"(a), "r"(v) : "memory");
}
OSCAR_DEVICE float max_or_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0,%1,%2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

OSCAR_DEVICE unsigned pair_bf16(float x, float y) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const unsigned*>(&v);
}
OSCAR_DEVICE uint4 round8(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return make_uint4(pair_bf16(a.x, a.y), pair_bf16(a.z, a.w), pair_bf16(b.x, b.y), pair_bf16(b.z, b.w));
}
// Eight channels as bfloat16.
OSCAR_DEVICE uint4 load8(const void* from, bool f32, int64_t at, bool present) {
  if (!present) return make_uint4(0, 0, 0, 0);
  return f32 ? round8(static_cast<const float*>(from) + at)
             : *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(from) + at);
}
// A power of two: sums of what is at most twice `bound` keep 44 bits below it as integers.
OSCAR_DEVICE float unit_of(float bound) {
  const int exponent = static_cast<int>(__float_as_uint(bound) >> 23 & 255);
  return __uint_as_float(static_cast<unsigned>(298 - max(exponent, 44)) << 23);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The lower half of a descriptor: the start address in units of 16 bytes. The upper half says that groups of eight rows are
// 1024 bytes apart.
OSCAR_DEVICE unsigned tile_descriptor(uint32_t address) {
  return (address & 0x3ffff) >> 4 | 1u << 16;
}
OSCAR_DEVICE void keep(float (&d)[32]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}
// Its values need not be kept: the first step overwrites them.
OSCAR_DEVICE void forget(float (&d)[32]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "=f"(x)::"memory");
}
template <bool kAdd>
OSCAR_DEVICE void tile_step(float (&d)[32], unsigned a, unsigned b) {
  asm volatile(
      "{\n.reg .b64 a,b;\n.reg .pred p;\nsetp.ne.b32 p,%34,0;\nmov.b64 a,{%32,0x40000040};\nmov.b64 "
      "b,{%33,0x40000040};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%"
      "27,"
      "%28,%29,%30,%31},a,b,p,1,1,0,0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "r"(a), "r"(b), "n"(kAdd ? 1 : 0));
}
#else
OSCAR_DEVICE void load_matrices(unsigned (&m)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
#endif

template <int kBlocks, int kRowSets, int kColumnSets>
OSCAR_DEVICE void tile_product(float (&d)[32], uint32_t rows, uint32_t columns) {
  constexpr int kRowBlocks = kBlocks * kRowSets, kColumnBlocks = kBlocks * kColumnSets,
                kCount = kRowBlocks > kColumnBlocks ? kRowBlocks : kColumnBlocks;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  forget(d);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  const unsigned a = tile_descriptor(rows), b = tile_descriptor(columns);
#pragma unroll
  for (int block = 0; block < kCount; ++block) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned from_rows = a + block % kRowBlocks * (kTileBlock / 16) + 2 * k,
                     from_columns = b + block % kColumnBlocks * (kTileBlock / 16) + 2 * k;
      if (block + k == 0) {
        tile_step<false>(d, from_rows, from_columns);
      } else {
        tile_step<true>(d, from_rows, from_columns);
      }
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
  const int row = 16 * warp + (lane & 15), column = (lane & 7) + (lane & 16) / 2;
#pragma unroll
  for (float& x : d) x = 0;
#pragma unroll 1
  for (int block = 0; block < kCount; ++block) {
    const uint32_t a = rows + block % kRowBlocks * kTileBlock,
                   b = columns + block % kColumnBlocks * kTileBlock;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      unsigned x[4];
      load_matrices(x, a + tile_piece(row, 2 * k + lane / 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned y[4];
        load_matrices(y, b + tile_piece(16 * i + column, 2 * k + (lane / 8 & 1)));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* const to = d + 8 * i + 4 * half;
          product_bf16(reinterpret_cast<float(&)[4]>(*to), x[0], x[1], x[2], x[3], y[2 * half],
                       y[2 * half + 1]);
        }
      }
    }
  }
#endif
}
// d = rows . columns^T over 64 `blocks` channels, for the four warps of a warpgroup together. Two sets: as many channels
// again follow, which meet those of the other operand a second time. Lane 4 g + t of warp w has rows 16 w + g + 8 r, columns
// 8 i + 2 t + c in d[4 i + 2 r + c]. The product is under way until tile_wait(): its registers must not be touched before.
// Unrolled, as loops would make that wait one for all products.
template <int kRowSets, int kColumnSets>
OSCAR_DEVICE void tile_product(float (&d)[32], uint32_t rows, uint32_t columns, int blocks) {
  if (blocks == 1) {
    tile_product<1, kRowSets, kColumnSets>(d, rows, columns);
  } else if (blocks == 2) {
    tile_product<2, kRowSets, kColumnSets>(d, rows, columns);
  } else if (blocks == 3) {
    tile_product<3, kRowSets, kColumnSets>(d, rows, columns);
  } else {
    tile_product<4, kRowSets, kColumnSets>(d, rows, columns);
  }
}
// Until all but the last kPending products are done; d is that of the last one done.
template <int kPending>
OSCAR_DEVICE void tile_wait([[maybe_unused]] float (&d)[32]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  keep(d);
#endif
}
// What this thread has written into tiles in shared memory can be multiplied after the next barrier.
OSCAR_DEVICE void tile_written() {
  order_before_bulk_copies();
}

}  // namespace oscar::cuda
