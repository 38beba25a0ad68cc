#include "kernels/cuda/launch.h"
#include "kernels/cuda/merge_parts.cuh"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 256;

// One block per query head of a sequence.
__global__ __launch_bounds__(kThreads) void merge(const __grid_constant__ MergeArguments args) {
  const int heads = args.kv_heads * args.group, sequence = blockIdx.x / heads, head = blockIdx.x % heads;
  const int kv_head = head / args.group, job = sequence * (args.kv_heads / args.run) + kv_head / args.run;
  const int first = __ldg(args.merge_first + job), end = __ldg(args.merge_first + job + 1);
  __shared__ __align__(16) uint8_t scratch[kMergeScratch * kThreads];
  wait_preceding();
  if (first == end) return;
  merge_parts<4>({args.parts, first, end - first, args.run * args.group,
                  kv_head % args.run * args.group + head % args.group, 1, 1, 1, args.sink_logits, args.o,
                  args.lse, args.bf16, int64_t{blockIdx.x}, head},
                 args.dim, scratch);
}

}  // namespace

cudaError_t launch_merge(const MergeArguments& arguments, int sequences, int compute_major,
                         cudaStream_t stream) {
  return launch_kernel(merge, sequences * arguments.kv_heads * arguments.group, kThreads, 0,
                       compute_major >= 9, stream, arguments);
}

}  // namespace oscar::cuda
