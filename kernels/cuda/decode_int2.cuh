// Decode over native INT2 pages: a warp owns a page of one KV head at a time, brought in by one bulk copy
// into its own ring.
#pragma once
#include <algorithm>

#include "kernels/cuda/int2_native.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/int2_launch.h"

namespace oscar::cuda {

struct NativeArguments {
  DecodeInputs in;
  DecodeOutputs out;
  PlanView plan;
  Partials parts;
  int kv_heads, group, passes;
};

// The pages of a segment that are a warp's own: every kWarps-th.
template <int kBytes, int kWarps>
struct OwnPages {
  const int32_t* table;
  const uint8_t* from;
  int64_t stride;
  int first, count, ids;

  OSCAR_DEVICE OwnPages(const NativeArguments& args, const Segment& s, int warp)
      : from(args.in.pages + int64_t{s.head} * kBytes), stride(int64_t{args.kv_heads} * kBytes) {
    first = (s.first >> 6) + warp;
    table = args.in.table + s.table + first;
    count = s.end > s.first ? max(0, ((s.end + 63) / 64 - first + kWarps - 1) / kWarps) : 0;
    ids = 0;
  }
  // Begins the copy of page k; in the order of k, ids come 32 at a time.
  OSCAR_DEVICE void copy(int k, uint32_t to, uint32_t barrier, int lane) {
    if (k < count) {
      if ((k & 31) == 0) ids = k + lane < count ? __ldg(table + (k + lane) * kWarps) : 0;
      const uint8_t* at = from + __shfl_sync(kWarp, ids, k & 31) * stride;
      if constexpr (kBulkCopies) {
        if (lane == 0) {
          barrier_expect(barrier, kBytes);
          bulk_copy(to, at, kBytes, barrier);
        }
      } else {
        for (int i = lane; i < kBytes / 16; i += 32) copy16(to + 16 * i, at + 16 * i);
      }
    }
    if constexpr (!kBulkCopies) copy_commit();
  }
};

template <class Shape, int kWarps, int kStages, int kResident>
__global__ __launch_bounds__(32 * kWarps, kResident) void decode_int2_native(
    const __grid_constant__ NativeArguments args) {
  launch_dependents();
  using Page = NativePage<Shape>;
  constexpr int D = Shape::D, NT = Shape::NT, kBytes = Page::kBytes, kOutput = 4 * NT * (D + 2);
  constexpr int kOwn = kStages * kBytes + Shape::kWeightBytes;  // of a warp; the outputs of all come after
  static_assert(2 * kExactTokens * kExactPitch<D> <= kStages * kBytes && kOwn % 128 == 0);
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kStages];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint32_t stages = shared_address(memory) + warp * kOwn, weights = stages + kStages * kBytes;
  const uint32_t barrier = shared_address(barriers) + 8 * kStages * warp;
  float* outputs = reinterpret_cast<float*>(memory + kWarps * kOwn);
  if (lane < kStages) barrier_init(barrier + 8 * lane);
  barrier_init_fence();
  __syncwarp();
  const int block = blockIdx.x / args.passes, head0 = blockIdx.x % args.passes * 4 * NT;
  const int heads = min(4 * NT, args.group - head0), query_heads = args.kv_heads * args.group;
  int stage = 0;
  unsigned phase = 0;
  Segment segment = args.plan.block_segments[block];
  const int segments = segment.count, next = segment.next;
  OwnPages<kBytes, kWarps> pages(args, segment, warp);
  const auto fill = [&] {
    for (int k = 0; k < kStages; ++k) {
      const int to = (stage + k) % kStages;
      pages.copy(k, stages + to * kBytes, barrier + 8 * to, lane);
    }
  };
  if (segments == 0) return;
  fill();
  wait_preceding();
  for (int s = 0; s < segments; ++s) {
    const int64_t query = int64_t{segment.sequence} * query_heads + segment.head * args.group + head0;
    const bool bf16 = args.in.q_type == FloatType::bf16;
    const QueryRows rows{static_cast<const char*>(args.in.q) + query * D * (bf16 ? 2 : 4), bf16, heads,
                         args.in.scale * kLog2e, args.in.softcap * kLog2e};
    Int2Query<Shape> q;
    make_query<Shape, Page>(q, rows, args.in.k_mean ? args.in.k_mean + segment.head * D : nullptr, lane);
    AttentionState<D, NT, Shape::G> state;
    state.init();
    for (int k = 0; k < pages.count; ++k) {
      if constexpr (kBulkCopies) {
        barrier_wait(barrier + 8 * stage, phase);
      } else {
        copy_wait<kStages - 1>();
        __syncwarp();
      }
      const Page page{stages + stage * kBytes, lane};
      const int token = (pages.first + k * kWarps) * 64, first = segment.first - token,
                end = segment.end - token;
      if (first > 0 || end < 64 || rows.softcap > 0.f) {
        attend_tile<Shape, true>(page, q, state, weights, lane, first, end, rows.softcap);
      } else {
        attend_tile<Shape, false>(page, q, state, weights, lane, 0, 64, 0.f);
      }
      __syncwarp();
      pages.copy(k + kStages, stages + stage * kBytes, barrier + 8 * stage, lane);
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
      const ExactRows exact{args.in.exact_k + segment.head * D,
                            args.in.exact_v + segment.head * D,
                            args.in.exact_slots + segment.exact_table,
                            int64_t{args.kv_heads} * D,
                            segment.exact,
                            segment.exact_end};
      attend_exact(state, exact, rows, warp, kWarps, stages, lane);
      order_before_bulk_copies();
      __syncwarp();
    }
    const Segment done = segment;
    if (s + 1 < segments) {  // its first pages come while this segment's outputs are combined
      segment = args.plan.segments[next + s];
      pages = OwnPages<kBytes, kWarps>(args, segment, warp);
      fill();
    }
    state.leave(lane, outputs + warp * kOutput);
    __syncthreads();
    combine<D, NT, kWarps>(
        outputs, kOutput, kWarps, heads,
        {args.parts, done.partial, args.group, head0, args.in.sink_logits, args.out.o, args.out.lse,
         args.out.o_type == FloatType::bf16, query, done.head * args.group + head0});
    __syncthreads();
  }
}

template <class Shape, int kWarps, int kStages, int kResident>
cudaError_t launch_native(const DecodeLaunch& d, int passes) {
  constexpr int kShared =
      kWarps * (kStages * NativePage<Shape>::kBytes + Shape::kWeightBytes + 16 * Shape::NT * (Shape::D + 2));
  auto* kernel = decode_int2_native<Shape, kWarps, kStages, kResident>;
  static const cudaError_t prepared =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (prepared != cudaSuccess) return prepared;
  const NativeArguments args{
      d.inputs,          d.outputs,      d.view, partials_in(d.workspace, d.format, 1, d.plan.partials),
      d.format.kv_heads, d.format.group, passes};
  return launch_kernel(kernel, d.plan.blocks * passes, 32 * kWarps, kShared, d.overlap, d.stream, args);
}

template <int D, int G>
cudaError_t launch_native_dim(const DecodeLaunch& d) {
  constexpr Int2Launch kOne = int2_native_launch(D, G, 1), kTwo = int2_native_launch(D, G, 8);
  const int passes = int2_native_launch(D, G, d.format.group).passes;
  if constexpr (kTwo.tiles == 2) {
    if (d.format.group > 4) return launch_native<Int2Shape<D, G, 2>, kTwo.warps, 2, kTwo.resident>(d, passes);
  }
  return launch_native<Int2Shape<D, G, 1>, kOne.warps, 2, kOne.resident>(d, passes);
}

}  // namespace oscar::cuda
