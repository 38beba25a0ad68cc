// Decode over native INT2 pages: a warp owns a page of one KV head at a time, brought in by one bulk copy
// into its own ring.
#pragma once
#include <algorithm>

#include "kernels/cuda/int2_native.cuh"
#include "kernels/cuda/launch.h"

namespace oscar::cuda {

struct NativeArguments {
  DecodeInputs in;
  DecodeOutputs out;
  PlanView plan;
  Partials parts;
  int kv_heads, group, passes;
};

template <class Shape, int kWarps, int kStages, int kResident>
__global__ __launch_bounds__(32 * kWarps, kResident) void decode_int2_native(
    const __grid_constant__ NativeArguments args) {
  launch_dependents();
  using Page = NativePage<Shape>;
  constexpr int D = Shape::D, NT = Shape::NT, kBytes = Page::kBytes;
  constexpr int kOwn = kStages * kBytes + Shape::kWeightBytes;  // of a warp; its output lies over its stages
  static_assert(4 * 4 * NT * (D + 2) <= kOwn && 2 * kExactTokens * kExactPitch<D> <= kStages * kBytes &&
                kOwn % 128 == 0);
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kStages];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint32_t stages = shared_address(memory) + warp * kOwn, weights = stages + kStages * kBytes;
  const uint32_t barrier = shared_address(barriers) + 8 * kStages * warp;
  if (lane < kStages) barrier_init(barrier + 8 * lane);
  barrier_init_fence();
  __syncwarp();
  const int block = blockIdx.x / args.passes, head0 = blockIdx.x % args.passes * 4 * NT;
  const int heads = min(4 * NT, args.group - head0), query_heads = args.kv_heads * args.group;
  int stage = 0;
  unsigned phase = 0;
  bool waited = false;
  for (int s = __ldg(args.plan.block_first + block); s < __ldg(args.plan.block_first + block + 1); ++s) {
    const Segment segment = args.plan.segments[s];
    const int first_page = segment.first >> 6, pages = (segment.end + 63) / 64 - first_page;
    const int own = segment.end > segment.first ? max(0, (pages - warp + kWarps - 1) / kWarps) : 0;
    const int32_t* table = args.in.table + segment.table + first_page + warp;
    const uint8_t* from = args.in.pages + int64_t{segment.head} * kBytes;
    int ids = 0;
    const auto issue = [&](int page, int to) {
      if ((page & 31) == 0) ids = page + lane < own ? __ldg(table + (page + lane) * kWarps) : 0;
      const int64_t id = __shfl_sync(kWarp, ids, page & 31);
      const uint8_t* at = from + id * args.kv_heads * kBytes;
      if constexpr (kBulkCopies) {
        if (lane == 0) {
          barrier_expect(barrier + 8 * to, kBytes);
          bulk_copy(stages + to * kBytes, at, kBytes, barrier + 8 * to);
        }
      } else {
        for (int i = lane; i < kBytes / 16; i += 32) copy16(stages + to * kBytes + 16 * i, at + 16 * i);
      }
    };
    const auto commit = [&] {
      if constexpr (!kBulkCopies) copy_commit();
    };
    for (int k = 0; k < kStages; ++k) {
      if (k < own) issue(k, (stage + k) % kStages);
      commit();
    }
    if (!waited) wait_preceding();
    waited = true;
    const int64_t query = int64_t{segment.sequence} * query_heads + segment.head * args.group + head0;
    const QueryRows rows{
        args.in.q_type == FloatType::bf16
            ? static_cast<const void*>(static_cast<const __nv_bfloat16*>(args.in.q) + query * D)
            : static_cast<const void*>(static_cast<const float*>(args.in.q) + query * D),
        args.in.q_type == FloatType::bf16, heads, args.in.scale * kLog2e, args.in.softcap * kLog2e};
    Int2Query<Shape> q;
    make_query<Shape, Page>(q, rows, args.in.k_mean ? args.in.k_mean + segment.head * D : nullptr, lane);
    AttentionState<D, NT, Shape::G> state;
    state.init();
    for (int k = 0; k < own; ++k) {
      if constexpr (kBulkCopies) {
        barrier_wait(barrier + 8 * stage, phase);
      } else {
        copy_wait<kStages - 1>();
        __syncwarp();
      }
      const Page page{stages + stage * kBytes, lane};
      const int token = (first_page + warp + k * kWarps) * 64;
      const int first = segment.first - token, end = segment.end - token;
      if (first > 0 || end < 64 || rows.softcap > 0.f) {
        attend_tile<Shape, true>(page, q, state, weights, lane, first, end, rows.softcap);
      } else {
        attend_tile<Shape, false>(page, q, state, weights, lane, 0, 64, 0.f);
      }
      __syncwarp();
      if (k + kStages < own) issue(k + kStages, stage);
      commit();
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
    __syncwarp();
    if (rows.softcap > 0.f) {
#pragma unroll
      for (int n = 0; n < NT; ++n) q.shift[n] = 0.f;
    }
    state.template finish_codes<Page>(lane, q.shift,
                                      args.in.v_mean ? args.in.v_mean + segment.head * D : nullptr);
    if (segment.exact_end > segment.exact) {
      const int64_t stride = int64_t{args.kv_heads} * D;
      const ExactRows exact{args.in.exact_k + segment.head * D,
                            args.in.exact_v + segment.head * D,
                            args.in.exact_slots + segment.exact_table,
                            stride,
                            segment.exact,
                            segment.exact_end};
      attend_exact(state, exact, rows, warp, kWarps, stages, lane);
    }
    state.leave(lane, reinterpret_cast<float*>(memory + warp * kOwn));
    __syncthreads();
    combine<D, NT>(
        reinterpret_cast<const float*>(memory), kOwn / 4, kWarps, heads,
        {args.parts, segment.partial, args.group, head0, args.in.sink_logits, args.out.o, args.out.lse,
         args.out.o_type == FloatType::bf16, query, segment.head * args.group + head0});
    order_before_bulk_copies();
    __syncthreads();
  }
}

template <class Shape, int kWarps, int kStages, int kResident>
cudaError_t launch_native(const DecodeLaunch& d, int passes) {
  constexpr int kShared = kWarps * (kStages * NativePage<Shape>::kBytes + Shape::kWeightBytes);
  auto* kernel = decode_int2_native<Shape, kWarps, kStages, kResident>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (prepared != cudaSuccess) return prepared;
  const NativeArguments args{
      d.inputs,          d.outputs,      d.view, partials_in(d.workspace, d.format, 1, d.plan.partials),
      d.format.kv_heads, d.format.group, passes};
  return launch_kernel(kernel, d.plan.blocks * passes, 32 * kWarps, kShared, d.overlap, d.stream, args);
}

// Warps a block, stages and resident blocks for each D; more than four heads in one pass where registers
// allow.
template <int D, int G>
cudaError_t launch_native_dim(const DecodeLaunch& d) {
  constexpr int kWarps = D > 128 ? 4 : 8;
  if constexpr (D <= 128) {
    if (d.format.group > 4)
      return launch_native < Int2Shape<D, G, 2>, kWarps, 2, D == 64 ? 2 : 1 > (d, (d.format.group + 7) / 8);
  }
  return launch_native<Int2Shape<D, G, 1>, kWarps, 2, 2>(d, (d.format.group + 3) / 4);
}

}  // namespace oscar::cuda
