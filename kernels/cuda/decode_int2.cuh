// Decode over native INT2 pages: a warp owns a page of one KV head at a time, brought in by one bulk copy
// into its own ring.
#pragma once
#include <algorithm>

#include "kernels/cuda/int2_native.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/int2_launch.h"

namespace oscar::cuda {

// In the order of use: parameters come to a multiprocessor 64 bytes at a time.
struct NativeArguments {
  const Segment *block_segments, *segments;
  const uint8_t* pages;
  const int32_t* table;
  const void* q;
  float scale, softcap;
  int kv_heads, group;
  bool q_bf16, o_bf16;
  Partials parts;
  void* o;
  float* lse;
  const float *sink_logits, *k_mean, *v_mean;
  const int32_t* exact_slots;
  const uint16_t *exact_k, *exact_v;
};

// The pages of a segment that are a warp's own: every kWarps-th.
template <int kBytes, int kWarps>
struct OwnPages {
  const int32_t* table;
  const uint8_t* from;
  int64_t stride;
  int first, count, ids;

  // Asks for the first ids at once.
  OSCAR_DEVICE OwnPages(const NativeArguments& args, const Segment& s, int warp, int lane)
      : from(args.pages + int64_t{s.head} * kBytes), stride(int64_t{args.kv_heads} * kBytes) {
    first = (s.first >> 6) + warp;
    table = args.table + s.table + first;
    count = s.end > s.first ? max(0, ((s.end + 63) / 64 - first + kWarps - 1) / kWarps) : 0;
    ids = lane < count ? __ldg(table + lane * kWarps) : 0;
  }
  // Begins the copy of page k; in the order of k, ids come 32 at a time.
  OSCAR_DEVICE void copy(int k, uint32_t to, uint32_t barrier, int lane) {
    if (k < count) {
      if (k > 0 && (k & 31) == 0) ids = k + lane < count ? __ldg(table + (k + lane) * kWarps) : 0;
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
  const int head0 = blockIdx.x * 4 * NT, heads = min(4 * NT, args.group - head0);
  const int query_heads = args.kv_heads * args.group;
  int stage = 0;
  unsigned phase = 0;
  // In shared memory, because registers are short.
  __shared__ Segment held[kWarps];
  const auto hold = [&](const Segment* from) {
    __syncwarp();
    if (lane < 4) {
      reinterpret_cast<uint4*>(held + warp)[lane] = __ldg(reinterpret_cast<const uint4*>(from) + lane);
    }
    __syncwarp();
    asm volatile("" ::: "memory");  // written as another type: what was read before is read again
  };
  hold(args.block_segments + blockIdx.y);
  const Segment& segment = held[warp];
  const int segments = segment.count, next = segment.next;
  OwnPages<kBytes, kWarps> pages(args, segment, warp, lane);
  const auto fill = [&] {
    for (int k = 0; k < kStages; ++k) {
      const int to = (stage + k) % kStages;
      pages.copy(k, stages + to * kBytes, barrier + 8 * to, lane);
    }
  };
  if (segments == 0) return;
  const auto first_query = [&](const Segment& of) {
    return int64_t{of.sequence} * query_heads + of.head * args.group + head0;
  };
  const auto query_rows = [&](const Segment& of) {
    return QueryRows{static_cast<const char*>(args.q) + first_query(of) * D * (args.q_bf16 ? 2 : 4),
                     args.q_bf16, heads, args.scale * kLog2e, args.softcap * kLog2e};
  };
  fill();
  wait_preceding();
  for (int s = 0; s < segments; ++s) {
    const QueryRows rows = query_rows(segment);
    Int2Query<Shape> q;
    LoadedQuery<Shape> loaded;
    load_query<Shape, Page>(loaded, rows, lane);
    make_query<Shape, Page>(q, loaded, rows, args.k_mean ? args.k_mean + segment.head * D : nullptr, lane);
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
    state.template finish_codes<Page>(lane, q.shift, args.v_mean ? args.v_mean + segment.head * D : nullptr);
    if (segment.exact_end > segment.exact) {
      const ExactRows exact{args.exact_k + segment.head * D,
                            args.exact_v + segment.head * D,
                            args.exact_slots + segment.exact_table,
                            int64_t{args.kv_heads} * D,
                            segment.exact,
                            segment.exact_end};
      attend_exact(state, exact, rows, warp, kWarps, stages, lane);
      order_before_bulk_copies();
      __syncwarp();
    }
    const SegmentOutput out{args.parts,
                            segment.partial,
                            args.group,
                            head0,
                            args.sink_logits,
                            args.o,
                            args.lse,
                            args.o_bf16,
                            first_query(segment),
                            segment.head * args.group + head0};
    if (s + 1 < segments) {  // its first pages come while this segment's outputs are combined
      hold(args.segments + next + s);
      pages = OwnPages<kBytes, kWarps>(args, segment, warp, lane);
      fill();
    }
    state.leave(lane, outputs + warp * kOutput);
    __syncthreads();
    combine<D, NT, kWarps>(outputs, kOutput, kWarps, heads, out);
    __syncthreads();
  }
}

template <class Shape, int kWarps, int kStages, int kResident>
cudaError_t launch_native(const DecodeLaunch& d, int passes) {
  constexpr int kShared =
      kWarps * (kStages * NativePage<Shape>::kBytes + Shape::kWeightBytes + 16 * Shape::NT * (Shape::D + 2));
  auto* kernel = decode_int2_native<Shape, kWarps, kStages, kResident>;
  const cudaError_t prepared =  // every time: the attribute is of the current device
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (prepared != cudaSuccess) return prepared;
  const DecodeInputs& in = d.inputs;
  const NativeArguments args{d.view.block_segments,
                             d.view.segments,
                             in.pages,
                             in.table,
                             in.q,
                             in.scale,
                             in.softcap,
                             d.format.kv_heads,
                             d.format.group,
                             in.q_type == FloatType::bf16,
                             d.outputs.o_type == FloatType::bf16,
                             partials_in(d.workspace, d.format, 1, d.plan.partials),
                             d.outputs.o,
                             d.outputs.lse,
                             in.sink_logits,
                             in.k_mean,
                             in.v_mean,
                             in.exact_slots,
                             in.exact_k,
                             in.exact_v};
  return launch_kernel(kernel, dim3(passes, d.plan.blocks), 32 * kWarps, kShared, d.overlap, d.stream, args);
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
