// The parts of a job become its output: by the block that adds the last of them, or by the second kernel.
#pragma once
#include "kernels/cuda/partials.cuh"

namespace oscar::cuda {

// Which heads, and where they go. A part has `group` heads of each of its KV heads one after the other; merged
// are `heads` from `first_head` on of each of `run` KV heads.
struct MergedHeads {
  Partials parts;
  int first_part, count;
  int part_heads, first_head;
  int run, group, heads;
  const float* sink_logits;
  void* o;
  float* lse;
  bool bf16;
  int64_t query;  // of the first head: index into (sequences, query heads)
  int sink_head;  // the same within the model's query heads
};

// A running sum of parts: four channels of one head.
struct PartSum {
  float m = -INFINITY, l = 0.f;
  float4 o = {0.f, 0.f, 0.f, 0.f};

  template <int kCount>
  OSCAR_DEVICE void add(const float2 (&ml)[kCount], const float4 (&v)[kCount]) {
    float top = m;
#pragma unroll
    for (int k = 0; k < kCount; ++k) top = fmaxf(top, ml[k].x);
    const float old = m == -INFINITY ? 0.f : exp2_approx(m - top);
    l *= old;
    o = make_float4(o.x * old, o.y * old, o.z * old, o.w * old);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float f = ml[k].x == -INFINITY ? 0.f : exp2_approx(ml[k].x - top);
      l = fmaf(f, ml[k].y, l);
      o = make_float4(fmaf(f, v[k].x, o.x), fmaf(f, v[k].y, o.y), fmaf(f, v[k].z, o.z), fmaf(f, v[k].w, o.w));
    }
    m = top;
  }
};

// All threads of the block. A thread has four channels of every so many-th part, kAtOnce of them loaded
// together; parts are added in an order that does not depend on timing. scratch: kMergeScratch bytes a thread,
// from a multiple of 16.
inline constexpr int kMergeScratch = sizeof(float4) + sizeof(float2);
template <int kAtOnce>
OSCAR_DEVICE void merge_parts(const MergedHeads& job, int dim, void* scratch) {
  const int quads = dim / 4, columns = job.run * job.heads * quads, threads = blockDim.x;
  const int rows = max(threads / columns, 1), y = rows > 1 ? threadIdx.x / columns : 0;
  float4* sums = static_cast<float4*>(scratch);
  float2* tops = reinterpret_cast<float2*>(sums + threads);
  for (int column = threadIdx.x - y * columns; column < columns; column += threads) {
    const int head = column / quads, at = 4 * (column - head * quads);
    const int kv_head = job.run == 1 ? 0 : head / job.heads;
    const int own = kv_head * (job.group - job.heads) + head;  // counted from first_head
    PartSum sum;
    for (int begin = y; y < rows && begin < job.count; begin += kAtOnce * rows) {
      float2 ml[kAtOnce];
      float4 v[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int part = job.first_part + min(begin + k * rows, job.count - 1);
        const int64_t row = int64_t{part} * job.part_heads + job.first_head + own;
        ml[k] = __ldcg(job.parts.ml + row);
        v[k] = __ldcg(reinterpret_cast<const float4*>(job.parts.o + row * dim + at));
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (begin + k * rows >= job.count) ml[k].x = -INFINITY;
      }
      sum.add(ml, v);
    }
    if (rows > 1) {
      sums[threadIdx.x] = sum.o;
      tops[threadIdx.x] = make_float2(sum.m, sum.l);
      __syncthreads();
      if (y > 0) return;
      for (int k = 1; k < min(rows, job.count); ++k) {
        const float2 ml[1] = {tops[k * columns + column]};
        const float4 v[1] = {sums[k * columns + column]};
        sum.add(ml, v);
      }
    }
    float* lse = job.lse && at == 0 ? job.lse + job.query + own : nullptr;
    const float f = final_scale(sum.m, sum.l, job.sink_logits, job.sink_head + own, lse);
    const int64_t to = (job.query + own) * dim + at;
    store_pair(job.o, job.bf16, to, sum.o.x * f, sum.o.y * f);
    store_pair(job.o, job.bf16, to + 2, sum.o.z * f, sum.o.w * f);
  }
}

// All threads of a block that has written its part: whether no other one is missing. counter is 0 before the
// first and after the last.
OSCAR_DEVICE bool is_last_part(int32_t* counter, int parts) {
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    last = count_arrival(counter) + 1 == parts;
    if (last) *counter = 0;
  }
  return __syncthreads_or(last);
}

}  // namespace oscar::cuda
