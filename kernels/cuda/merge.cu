#include "kernels/cuda/launch.h"
#include "kernels/cuda/partials.cuh"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 128;

// One block per query head of a sequence. Parts are added in their order, so that a result does not depend on
// timing.
__global__ __launch_bounds__(kThreads) void merge(const __grid_constant__ MergeArguments args) {
  wait_preceding();
  const int heads = args.kv_heads * args.group, sequence = blockIdx.x / heads, head = blockIdx.x % heads;
  const int kv_head = head / args.group, job = sequence * (args.kv_heads / args.run) + kv_head / args.run;
  const int first = __ldg(args.merge_first + job), end = __ldg(args.merge_first + job + 1);
  if (first == end) return;
  const int part_heads = args.run * args.group, own = kv_head % args.run * args.group + head % args.group;
  const float2* ml = args.parts.ml + own;
  float m = -INFINITY;
  for (int p = first; p < end; ++p) m = fmaxf(m, __ldcg(ml + int64_t{p} * part_heads).x);
  for (int i = 2 * threadIdx.x; i < args.dim; i += 2 * kThreads) {
    float x = 0.f, y = 0.f, l = 0.f;
#pragma unroll 4
    for (int p = first; p < end; ++p) {
      const int64_t row = int64_t{p} * part_heads + own;
      const float2 part = __ldcg(args.parts.ml + row);
      const float2 v = __ldcg(reinterpret_cast<const float2*>(args.parts.o + row * args.dim + i));
      const float f = part.x == -INFINITY ? 0.f : exp2_approx(part.x - m);
      l = fmaf(f, part.y, l);
      x = fmaf(f, v.x, x);
      y = fmaf(f, v.y, y);
    }
    const float f =
        final_scale(m, l, args.sink_logits, head, args.lse && i == 0 ? args.lse + blockIdx.x : nullptr);
    store_pair(args.o, args.bf16, int64_t{blockIdx.x} * args.dim + i, x * f, y * f);
  }
}

}  // namespace

cudaError_t launch_merge(const MergeArguments& arguments, int sequences, int compute_major,
                         cudaStream_t stream) {
  return launch_kernel(merge, sequences * arguments.kv_heads * arguments.group, kThreads, 0,
                       compute_major >= 9, stream, arguments);
}

}  // namespace oscar::cuda
