#include "kernels/cuda/launch.h"
#include "kernels/cuda/partials.cuh"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 256;

// One block per query head of a sequence: a thread has four channels of every R-th part, the first four parts
// loaded at once. Parts are added in an order that does not depend on timing.
__global__ __launch_bounds__(kThreads) void merge(const __grid_constant__ MergeArguments args) {
  const int heads = args.kv_heads * args.group, sequence = blockIdx.x / heads, head = blockIdx.x % heads;
  const int kv_head = head / args.group, job = sequence * (args.kv_heads / args.run) + kv_head / args.run;
  const int first = __ldg(args.merge_first + job), end = __ldg(args.merge_first + job + 1);
  const int part_heads = args.run * args.group, own = kv_head % args.run * args.group + head % args.group;
  const int columns = args.dim / 4, rows = kThreads / columns, x = threadIdx.x % columns,
            y = threadIdx.x / columns;
  __shared__ float4 sums[kThreads];
  __shared__ float2 tops[kThreads];
  wait_preceding();
  if (first == end) return;
  constexpr int kAtOnce = 4;
  float m = -INFINITY, l = 0.f;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int begin = first + y; y < rows && begin < end; begin += kAtOnce * rows) {
    float2 part[kAtOnce];
    float4 v[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t row = int64_t{min(begin + k * rows, end - 1)} * part_heads + own;
      part[k] = __ldcg(args.parts.ml + row);
      v[k] = __ldcg(reinterpret_cast<const float4*>(args.parts.o + row * args.dim) + x);
    }
    float top = m;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (begin + k * rows >= end) part[k].x = -INFINITY;
      top = fmaxf(top, part[k].x);
    }
    const float old = m == -INFINITY ? 0.f : exp2_approx(m - top);
    l *= old;
    sum = make_float4(sum.x * old, sum.y * old, sum.z * old, sum.w * old);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const float f = part[k].x == -INFINITY ? 0.f : exp2_approx(part[k].x - top);
      l = fmaf(f, part[k].y, l);
      sum = make_float4(fmaf(f, v[k].x, sum.x), fmaf(f, v[k].y, sum.y), fmaf(f, v[k].z, sum.z),
                        fmaf(f, v[k].w, sum.w));
    }
    m = top;
  }
  sums[threadIdx.x] = sum;
  tops[threadIdx.x] = make_float2(m, l);
  __syncthreads();
  if (y > 0) return;
  const int used = min(rows, end - first);
  float top = m;
  for (int k = 1; k < used; ++k) top = fmaxf(top, tops[k * columns + x].x);
  float total = 0.f;
  sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int k = 0; k < used; ++k) {
    const float2 ml = tops[k * columns + x];
    const float f = ml.x == -INFINITY ? 0.f : exp2_approx(ml.x - top);
    const float4 v = sums[k * columns + x];
    total = fmaf(f, ml.y, total);
    sum = make_float4(fmaf(f, v.x, sum.x), fmaf(f, v.y, sum.y), fmaf(f, v.z, sum.z), fmaf(f, v.w, sum.w));
  }
  const float f =
      final_scale(top, total, args.sink_logits, head, args.lse && x == 0 ? args.lse + blockIdx.x : nullptr);
  const int64_t at = int64_t{blockIdx.x} * args.dim + 4 * x;
  store_pair(args.o, args.bf16, at, sum.x * f, sum.y * f);
  store_pair(args.o, args.bf16, at + 2, sum.z * f, sum.w * f);
}

}  // namespace

cudaError_t launch_merge(const MergeArguments& arguments, int sequences, int compute_major,
                         cudaStream_t stream) {
  return launch_kernel(merge, sequences * arguments.kv_heads * arguments.group, kThreads, 0,
                       compute_major >= 9, stream, arguments);
}

}  // namespace oscar::cuda
