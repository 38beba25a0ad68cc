// What every kernel needs of the machine: loads, matrix products, barriers and warp sums, one line each.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#define OSCAR_DEVICE __device__ __forceinline__

namespace oscar::cuda {

inline constexpr unsigned kWarp = 0xffffffffu;
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

OSCAR_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
OSCAR_DEVICE unsigned load_shared(uint32_t a) {
  unsigned v;
  asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v) : "r"(a));
  return v;
}
OSCAR_DEVICE uint2 load_shared2(uint32_t a) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "r"(a));
  return v;
}
OSCAR_DEVICE uint4 load_shared4(uint32_t a) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a));
  return v;
}
OSCAR_DEVICE void store_shared2(uint32_t a, unsigned x, unsigned y) {
  asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(a), "r"(x), "r"(y) : "memory");
}
// Read once, past the L1 cache.
OSCAR_DEVICE uint4 load_stream4(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// from + a * b, in one instruction.
OSCAR_DEVICE const uint8_t* multiply_add(uint32_t a, uint32_t b, const uint8_t* from) {
  const uint8_t* sum;
  asm("mad.wide.u32 %0,%1,%2,%3;" : "=l"(sum) : "r"(a), "r"(b), "l"(from));
  return sum;
}
OSCAR_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}
OSCAR_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}
OSCAR_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}
// Unlike __byte_perm it keeps the selector's sign-replicating bit.
OSCAR_DEVICE unsigned permute_bytes(unsigned a, unsigned b, unsigned selector) {
  unsigned d;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// d += a b for a (16, 32) bytes by rows, b (32, 8) bytes by columns. With lane = 4 g + t: a0 = rows g, k
// 4t..4t+3; a1 = row g + 8; a2, a3 the same at k + 16; b0 = column g, k 4t..4t+3; b1 at k + 16; d0, d1 = row
// g, columns 2t, 2t+1; d2, d3 row g + 8.
#define OSCAR_BYTE_PRODUCT(NAME, A, B)                                                                \
  OSCAR_DEVICE void NAME(int(&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, \
                         unsigned b1) {                                                               \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." A "." B                                     \
                 ".s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"                          \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                     \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                             \
  }
OSCAR_BYTE_PRODUCT(product_us, "u8", "s8")
OSCAR_BYTE_PRODUCT(product_uu, "u8", "u8")
OSCAR_BYTE_PRODUCT(product_su, "s8", "u8")
OSCAR_BYTE_PRODUCT(product_ss, "s8", "s8")
#undef OSCAR_BYTE_PRODUCT
// The same with k = 16: a0 = row g, k 4t..4t+3; a1 = row g + 8; b0 = column g.
OSCAR_DEVICE void product_us16(int (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};\n"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a0), "r"(a1), "r"(b0));
}
// d += a b for a (16, 16) bfloat16 by rows, b (16, 8) by columns: a0 = row g, k 2t, 2t+1; a1 = row g + 8; a2,
// a3 at k + 8; b0 = column g, k 2t, 2t+1; b1 at k + 8.
OSCAR_DEVICE void product_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                               unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with k = 8: a0 = row g, k 2t, 2t+1; a1 = row g + 8; b0 = column g.
OSCAR_DEVICE void product_bf16_k8(float (&d)[4], unsigned a0, unsigned a1, unsigned b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
// Four matrices of 8 rows of 16 bytes; lane 8 i + j gives the address of row j of matrix i. v[i] is two
// neighbours of matrix i: row g, columns 2t, 2t+1; kTransposed: column g, rows 2t, 2t+1.
template <bool kTransposed>
OSCAR_DEVICE void load_matrices(unsigned (&v)[4], uint32_t row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(row)
                 : "memory");
  }
}
// Adds 1. What this thread's block wrote before a barrier is seen by the block that counts after it.
OSCAR_DEVICE int count_arrival(int32_t* counter) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0,[%1],1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Over the eight lanes that share t.
OSCAR_DEVICE float max_over_g(float v) {
  v = fmaxf(v, __shfl_xor_sync(kWarp, v, 4));
  v = fmaxf(v, __shfl_xor_sync(kWarp, v, 8));
  return fmaxf(v, __shfl_xor_sync(kWarp, v, 16));
}
OSCAR_DEVICE float sum_over_g(float v) {
  v += __shfl_xor_sync(kWarp, v, 4);
  v += __shfl_xor_sync(kWarp, v, 8);
  return v + __shfl_xor_sync(kWarp, v, 16);
}

// Asynchronous copies into shared memory: one bulk copy per block of bytes on an mbarrier from sm_90 on,
// 16-byte copies of all lanes before. A ring has one barrier a stage; `phase` is the parity of how often the
// stage was filled before.
OSCAR_DEVICE void barrier_init(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(barrier) : "memory");
}
OSCAR_DEVICE void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}
template <int kBytes>
OSCAR_DEVICE void copy_small(uint32_t to, const void* from) {  // 4 or 8 bytes
  asm volatile("cp.async.ca.shared.global [%0],[%1],%2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}
OSCAR_DEVICE void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
OSCAR_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kBulkCopies = true;
OSCAR_DEVICE void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}
OSCAR_DEVICE void barrier_wait(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n@p bra DONE_%=;\nbra "
      "WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
OSCAR_DEVICE void bulk_copy(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
OSCAR_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// What this thread wrote to shared memory comes before the bulk copies that are issued after the next
// barrier.
OSCAR_DEVICE void order_before_bulk_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// True for one lane, the same every time; all lanes ask. What only it does needs no loop over lanes.
OSCAR_DEVICE bool elected() {
  unsigned found;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p,0xffffffff;\nselp.b32 %0,1,0,p;\n}" : "=r"(found));
  return found;
}
// Programmatic dependent launch: let the next kernel of the stream begin; wait for the preceding one to end.
OSCAR_DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
OSCAR_DEVICE void wait_preceding() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#else
inline constexpr bool kBulkCopies = false;
OSCAR_DEVICE void barrier_expect(uint32_t, int) {}
OSCAR_DEVICE void barrier_wait(uint32_t, uint32_t) {}
OSCAR_DEVICE void bulk_copy(uint32_t, const void*, int, uint32_t) {}
OSCAR_DEVICE void barrier_init_fence() {}
OSCAR_DEVICE void order_before_bulk_copies() {}
OSCAR_DEVICE bool elected() {
  return false;
}
OSCAR_DEVICE void launch_dependents() {}
OSCAR_DEVICE void wait_preceding() {}
#endif

}  // namespace oscar::cuda
