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
  uint32_t page_bytes;
  bool q_bf16, o_bf16, overlap;
  Partials parts;
  int32_t* counters;
  void* o;
  float* lse;
  const float *sink_logits, *k_mean, *v_mean;
  const int32_t* exact_slots;
  const uint16_t *exact_k, *exact_v;
};

// The pages of a segment that are a warp's own: every kWarps-th.
template <int kBytes, int kWarps>
struct OwnPages {
  const uint8_t* from;
  int count, ids;
  int whole, whole_end;  // pages [whole, whole_end) are visible from end to end, and logits not capped

  // Asks for the first ids at once.
  OSCAR_DEVICE OwnPages(const NativeArguments& args, const Segment& s, int warp, int lane)
      : from(args.pages + int64_t{s.head} * kBytes) {
    const int first = first_page(s, warp);
    count = s.end > s.first ? every(((s.end + 63) >> 6) - first) : 0;
    fetch(args, s, warp, 0, lane);
    whole = s.first > 64 * first;
    whole_end = args.softcap > 0.f ? 0 : every((s.end >> 6) - first);
  }
  static OSCAR_DEVICE int first_page(const Segment& s, int warp) { return (s.first >> 6) + warp; }
  // Begins the copy of page k < count; in the order of k, since ids come 32 at a time.
  OSCAR_DEVICE void copy(const NativeArguments& args, const Segment& s, int warp, int k, uint32_t to,
                         uint32_t barrier, int lane) {
    const uint8_t* at = multiply_add(__shfl_sync(kWarp, ids, k & 31), args.page_bytes, from);
    if constexpr (kBulkCopies) {
      if (elected()) {
        barrier_expect(barrier, kBytes);
        bulk_copy(to, at, kBytes, barrier);
      }
    } else {
      for (int i = lane; i < kBytes / 16; i += 32) copy16(to + 16 * i, at + 16 * i);
      copy_commit();
    }
    if ((k & 31) == 31) fetch(args, s, warp, k + 1, lane);
  }

 private:
  static OSCAR_DEVICE int every(int pages) { return max(0, (pages + kWarps - 1) / kWarps); }
  OSCAR_DEVICE void fetch(const NativeArguments& args, const Segment& s, int warp, int k, int lane) {
    const int32_t* table = args.table + s.table + first_page(s, warp);
    ids = k + lane < count ? __ldg(table + (k + lane) * kWarps) : 0;
  }
};

template <class Shape, int kWarps, int kStages, int kResident>
__global__ __launch_bounds__(32 * kWarps, kResident) void decode_int2_native(
    const __grid_constant__ NativeArguments args) {
  launch_dependents();
  using Page = NativePage<Shape>;
  constexpr int D = Shape::D, NT = Shape::NT, kBytes = Page::kBytes, kOutput = kLeft<D, NT>;
  constexpr int kOwn = kStages * kBytes + Shape::kWeightBytes;  // of a warp; the outputs of all come after
  static_assert((kStages & (kStages - 1)) == 0 && kExactTileBytes<D> <= kBytes && kOwn % 128 == 0);
  static_assert(kMergeScratch * 32 <= 4 * kOutput);
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(16) uint64_t barriers[kWarps * kStages];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint32_t stages = shared_address(memory) + warp * kOwn, weights = stages + kStages * kBytes;
  const uint32_t barrier = shared_address(barriers) + 8 * kStages * warp;
  float* outputs = reinterpret_cast<float*>(memory + kWarps * kOwn);
  if (lane < kStages) barrier_init(barrier + 8 * lane);
  barrier_init_fence();
  __syncwarp();
  const int head0 = blockIdx.x * 4 * NT, heads = min(4 * NT, args.group - head0);
  const int query_heads = args.kv_heads * args.group;
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
  if (segments == 0) return;
  const auto first_query = [&](const Segment& of) {
    return int64_t{of.sequence} * query_heads + of.head * args.group + head0;
  };
  const auto query_rows = [&](const Segment& of) {
    return QueryRows{static_cast<const char*>(args.q) + first_query(of) * D * (args.q_bf16 ? 2 : 4),
                     args.q_bf16, heads, args.scale * kLog2e, args.softcap * kLog2e};
  };

  // A warp's pages take turns in its stages; then its tiles of exact rows do, dealt out where pages ended.
  unsigned turn = 0;  // of the segment's first page
  constexpr int kExactStep = kExactTokens * kWarps;
  ExactTiles<D> tiles;
  const auto exact_rows = [&] {
    const int rank = (warp + (segment.first >> 6) - ((segment.end + 63) >> 6)) & (kWarps - 1);
    return ExactRows{args.exact_k + segment.head * D,        args.exact_v + segment.head * D,
                     args.exact_slots + segment.exact_table, int64_t{args.kv_heads} * D,
                     segment.exact + kExactTokens * rank,    segment.exact_end};
  };
  const auto stage_of = [&](int k) { return (turn + k) & (kStages - 1); };
  const auto tile_at = [&](int j) { return stages + stage_of(pages.count + j) * kBytes; };
  const auto copy_tile = [&](int j) {
    if (segment.exact_end > segment.exact) [[unlikely]] {
      tiles.copy(exact_rows(), kExactStep, j, tile_at(j), lane);
    } else if constexpr (!kBulkCopies) {
      copy_commit();
    }
  };
  const auto copy_page = [&](int k) {
    const int stage = stage_of(k);
    pages.copy(args, segment, warp, k, stages + stage * kBytes, barrier + 8 * stage, lane);
  };
  const auto begin_tiles = [&] {
    if (segment.exact_end > segment.exact) [[unlikely]]
      tiles.begin(exact_rows(), kExactStep, lane);
    if (pages.count < kStages) [[unlikely]] {
#pragma unroll 1
      for (int k = pages.count; k < kStages; ++k) copy_tile(k - pages.count);
    }
  };
  // Where the device has been idle, pages that all warps ask for together would arrive together, late: then
  // the second is asked for when the queries are made. Long work, which has more stages, is better off at once.
  const bool gradual = kStages == 2 && !args.overlap && pages.count > 1;
#pragma unroll
  for (int k = 0; k < kStages; ++k) {
    if (k < pages.count && (k == 0 || !gradual)) copy_page(k);
  }
  wait_preceding();
  begin_tiles();
  for (int s = 0; s < segments; ++s) {
    const QueryRows rows = query_rows(segment);
    Int2Query<Shape> q;
    LoadedQuery<Shape> loaded;
    load_query<Shape, Page>(loaded, rows, lane);
    make_query<Shape, Page>(q, loaded, rows, args.k_mean ? args.k_mean + segment.head * D : nullptr, lane);
    if (kStages == 2 && s == 0 && gradual) copy_page(1);
    AttentionState<D, NT, Shape::G> state;
    state.init();
    uint32_t at = stages + stage_of(0) * kBytes, filled = barrier + 8 * stage_of(0);
    for (int k = 0; k < pages.count; ++k) {
      if constexpr (kBulkCopies) {
        barrier_wait(filled, (turn + k) / kStages & 1);
      } else {
        copy_wait<kStages - 1>();
        __syncwarp();
      }
      const Page page{at, lane};
      if (k >= pages.whole && k < pages.whole_end) {
        attend_tile<Shape, false>(page, q, state, weights, lane, 0, 64, 0.f);
      } else {
        const int token = 64 * (pages.first_page(segment, warp) + k * kWarps);
        attend_tile<Shape, true>(page, q, state, weights, lane, segment.first - token, segment.end - token,
                                 rows.softcap);
      }
      __syncwarp();
      if (k + kStages < pages.count) {
        pages.copy(args, segment, warp, k + kStages, at, filled, lane);
      } else {
        copy_tile(k + kStages - pages.count);
      }
      if constexpr (kStages == 2) {
        at = 2 * stages + kBytes - at;
        filled ^= 8;
      } else {
        at = stages + stage_of(k + 1) * kBytes;
        filled = barrier + 8 * stage_of(k + 1);
      }
    }
    __syncwarp();
    if (rows.softcap > 0.f) {
#pragma unroll
      for (int n = 0; n < NT; ++n) q.shift[n] = 0.f;
    }
    state.template finish_codes<Page>(lane, q.shift, args.v_mean ? args.v_mean + segment.head * D : nullptr);
    if (segment.exact_end > segment.exact) [[unlikely]] {
      attend_exact<kStages>(state, tiles, exact_rows(), kExactStep, rows, tile_at, lane);
      order_before_bulk_copies();
      __syncwarp();
    }
    turn += pages.count;
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
    const int counter = segment.counter, first_part = segment.first_part, parts = segment.parts;
    if (s + 1 < segments) {  // its first pages come while this segment's outputs are combined
      hold(args.segments + next + s);
      pages = OwnPages<kBytes, kWarps>(args, segment, warp, lane);
#pragma unroll
      for (int k = 0; k < kStages; ++k) {
        if (k < pages.count) copy_page(k);
      }
      begin_tiles();
    }
    state.leave(lane, outputs + warp * kOutput);
    __syncthreads();
    combine<D, NT, kWarps>(outputs, kOutput, kWarps, heads, out);
    if (counter >= 0 && is_last_part(args.counters + counter * kMostPasses + blockIdx.x, parts)) {
      merge_parts<8>(out.merged(first_part, parts, 1, args.group, heads), D, outputs);
    }
    if (s + 1 < segments) __syncthreads();
  }
}

template <class Shape>
constexpr int native_shared(int warps, int stages) {
  return warps * (stages * NativePage<Shape>::kBytes + Shape::kWeightBytes + 4 * kLeft<Shape::D, Shape::NT>);
}
template <class Shape, int kWarps, int kStages, int kResident>
cudaError_t launch_native_stages(const DecodeLaunch& d, int passes) {
  constexpr int kShared = native_shared<Shape>(kWarps, kStages);
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
                             static_cast<uint32_t>(d.format.kv_heads * NativePage<Shape>::kBytes),
                             in.q_type == FloatType::bf16,
                             d.outputs.o_type == FloatType::bf16,
                             d.overlap,
                             partials_in(d.workspace, d.format, 1, d.plan.partials),
                             d.view.counters,
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

// A block that is alone on a multiprocessor has as much under way as two, where the device has room for that.
template <class Shape, int kWarps, int kResident>
cudaError_t launch_native(const DecodeLaunch& d, int passes) {
  if constexpr (kResident == 2) {
    constexpr int kStages = 4, kStatic = kWarps * (kStages * 8 + static_cast<int>(sizeof(Segment)));
    if (d.plan.deep && native_shared<Shape>(kWarps, kStages) + kStatic <= d.shared_bytes) {
      return launch_native_stages<Shape, kWarps, kStages, 1>(d, passes);
    }
  }
  return launch_native_stages<Shape, kWarps, 2, kResident>(d, passes);
}

template <int D, int G>
cudaError_t launch_native_dim(const DecodeLaunch& d) {
  constexpr Int2Launch kOne = int2_native_launch(D, G, 1), kTwo = int2_native_launch(D, G, 8);
  const int passes = int2_native_launch(D, G, d.format.group).passes;
  if constexpr (kTwo.tiles == 2) {
    if (d.format.group > 4) return launch_native<Int2Shape<D, G, 2>, kTwo.warps, kTwo.resident>(d, passes);
  }
  return launch_native<Int2Shape<D, G, 1>, kOne.warps, kOne.resident>(d, passes);
}

}  // namespace oscar::cuda
