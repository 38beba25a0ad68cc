// Decode over native pages of bit planes: a warp owns a page of one KV head at a time, as with INT2
// (decode_int2.cuh), whose ring, exact rows and merging these are. How long a page is the format says, not the
// kernel.
#pragma once
#include "kernels/cuda/planes_tile.cuh"

namespace oscar::cuda {

struct PlaneArguments {
  const Segment *block_segments, *segments;
  const uint8_t* pages;
  const int32_t* table;
  const void* q;
  float scale, softcap;
  int kv_heads, group;
  uint32_t page_bytes;
  int block_bytes, key_bytes, stage_bytes;  // of a KV head, of its keys, of a stage of the ring
  bool q_bf16, o_bf16, overlap;
  PlaneSide k, v;
  Partials parts;
  int32_t* counters;
  void* o;
  float* lse;
  const float *sink_logits, *k_mean, *v_mean;
  const int32_t* exact_slots;
  const uint16_t *exact_k, *exact_v;
};

// The pages of a segment that are a warp's own: every kWarps-th.
template <int kWarps>
struct OwnPlanePages {
  const uint8_t* from;
  int count, ids;
  int whole, whole_end;  // pages [whole, whole_end) are visible from end to end, and logits not capped

  // Asks for the first ids at once.
  OSCAR_DEVICE OwnPlanePages(const PlaneArguments& args, const Segment& s, int warp, int lane)
      : from(args.pages + int64_t{s.head} * args.block_bytes) {
    const int first = first_page(s, warp);
    count = s.end > s.first ? every(((s.end + 63) >> 6) - first) : 0;
    fetch(args, s, warp, 0, lane);
    whole = s.first > 64 * first;
    whole_end = args.softcap > 0.f ? 0 : every((s.end >> 6) - first);
  }
  static OSCAR_DEVICE int first_page(const Segment& s, int warp) { return (s.first >> 6) + warp; }
  // Begins the copy of page k < count; in the order of k, since ids come 32 at a time.
  OSCAR_DEVICE void copy(const PlaneArguments& args, const Segment& s, int warp, int k, uint32_t to,
                         uint32_t barrier, int lane) {
    const uint8_t* at = multiply_add(__shfl_sync(kWarp, ids, k & 31), args.page_bytes, from);
    if constexpr (kBulkCopies) {
      if (elected()) {
        barrier_expect(barrier, args.block_bytes);
        bulk_copy(to, at, args.block_bytes, barrier);
      }
    } else {
      for (int i = lane; i < args.block_bytes / 16; i += 32) copy16(to + 16 * i, at + 16 * i);
      copy_commit();
    }
    if ((k & 31) == 31) fetch(args, s, warp, k + 1, lane);
  }

 private:
  static OSCAR_DEVICE int every(int pages) { return max(0, (pages + kWarps - 1) / kWarps); }
  OSCAR_DEVICE void fetch(const PlaneArguments& args, const Segment& s, int warp, int k, int lane) {
    const int32_t* table = args.table + s.table + first_page(s, warp);
    ids = k + lane < count ? __ldg(table + (k + lane) * kWarps) : 0;
  }
};

template <int D, int kWarps, int kStages, int kResident>
__global__ __launch_bounds__(32 * kWarps,
                             kResident) void decode_planes(const __grid_constant__ PlaneArguments args) {
  launch_dependents();
  constexpr int kOutput = kLeft<D, 1>, kWeightBytes = 8 * kPlaneWeightPitch;
  static_assert((kStages & (kStages - 1)) == 0 && kExactTileBytes<D> == 16 * (2 * D + 16));
  static_assert(kMergeScratch * 32 <= 4 * kOutput && 4 * D <= kOutput);
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(16) uint64_t barriers[kWarps * kStages];
  __shared__ PlaneQuery made[4];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
  const int stage_bytes = args.stage_bytes, own = kStages * stage_bytes + kWeightBytes;
  const uint32_t stages = shared_address(memory) + warp * own, weights = stages + kStages * stage_bytes;
  const uint32_t barrier = shared_address(barriers) + 8 * kStages * warp;
  float* outputs = reinterpret_cast<float*>(memory + kWarps * own);
  uint8_t* queries = reinterpret_cast<uint8_t*>(outputs + kWarps * kOutput);
  if (lane < kStages) barrier_init(barrier + 8 * lane);
  barrier_init_fence();
  __syncwarp();
  const int head0 = blockIdx.x * 4, heads = min(4, args.group - head0);
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
  OwnPlanePages<kWarps> pages(args, segment, warp, lane);
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
  const auto tile_at = [&](int j) { return stages + stage_of(pages.count + j) * stage_bytes; };
  const auto copy_tile = [&](int j) {
    if (segment.exact_end > segment.exact) [[unlikely]] {
      tiles.copy(exact_rows(), kExactStep, j, tile_at(j), lane);
    } else if constexpr (!kBulkCopies) {
      copy_commit();
    }
  };
  const auto copy_page = [&](int k) {
    const int stage = stage_of(k);
    pages.copy(args, segment, warp, k, stages + stage * stage_bytes, barrier + 8 * stage, lane);
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
  // the second is asked for when the queries are made.
  const bool gradual = kStages == 2 && !args.overlap && pages.count > 1;
#pragma unroll
  for (int k = 0; k < kStages; ++k) {
    if (k < pages.count && (k == 0 || !gradual)) copy_page(k);
  }
  wait_preceding();
  begin_tiles();
  for (int s = 0; s < segments; ++s) {
    const QueryRows rows = query_rows(segment);
    if (warp < 4) {
      const PlaneQuery q =
          make_plane_query<D>(args.k, rows, args.k_mean ? args.k_mean + segment.head * D : nullptr,
                              segment.head, warp, queries, lane);
      if (lane == 0) made[warp] = q;
    }
    if (kStages == 2 && s == 0 && gradual) copy_page(1);
    __syncthreads();
    PlaneQuery query = made[t];
    PlaneState<D> sums;
    sums.init();
    for (int k = 0; k < pages.count; ++k) {
      const int stage = stage_of(k);
      const uint32_t at = stages + stage * stage_bytes, filled = barrier + 8 * stage;
      if constexpr (kBulkCopies) {
        barrier_wait(filled, (turn + k) / kStages & 1);
      } else {
        copy_wait<kStages - 1>();
        __syncwarp();
      }
      if (k >= pages.whole && k < pages.whole_end) {
        attend_planes<D, false>(args.k, args.v, at, args.key_bytes, shared_address(queries), query, sums,
                                weights, lane, 0, 64, 0.f);
      } else {
        const int token = 64 * (pages.first_page(segment, warp) + k * kWarps);
        attend_planes<D, true>(args.k, args.v, at, args.key_bytes, shared_address(queries), query, sums,
                               weights, lane, segment.first - token, segment.end - token, rows.softcap);
      }
      __syncwarp();
      if (k + kStages < pages.count) {
        pages.copy(args, segment, warp, k + kStages, at, filled, lane);
      } else {
        copy_tile(k + kStages - pages.count);
      }
    }
    __syncwarp();
    AttentionState<D, 1, 1> state;
    sums.finish(state, args.v, segment.head, rows.softcap > 0.f ? 0.f : query.shift,
                args.v_mean ? args.v_mean + segment.head * D : nullptr, outputs + warp * kOutput, lane);
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
      pages = OwnPlanePages<kWarps>(args, segment, warp, lane);
#pragma unroll
      for (int k = 0; k < kStages; ++k) {
        if (k < pages.count) copy_page(k);
      }
      begin_tiles();
    }
    state.leave(lane, outputs + warp * kOutput);
    __syncthreads();
    combine<D, 1, kWarps>(outputs, kOutput, kWarps, heads, out);
    if (counter >= 0 && is_last_part(args.counters + counter * kMostPasses + blockIdx.x, parts)) {
      merge_parts<8>(out.merged(first_part, parts, 1, args.group, heads), D, outputs);
    }
    if (s + 1 < segments) __syncthreads();
  }
}

template <int D, int kStages, int kResident>
cudaError_t launch_plane_stages(const DecodeLaunch& d) {
  constexpr int kWarps = plane_warps(D);
  const CacheFormat& f = d.format;
  const int key_bytes = static_cast<int>(side_bytes(f, f.k)),
            block_bytes = static_cast<int>(page_bytes(f) / f.kv_heads),
            shared = plane_shared_bytes(D, block_bytes, kStages);
  auto* kernel = decode_planes<D, kWarps, kStages, kResident>;
  const cudaError_t prepared =  // every time: the attribute is of the current device
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (prepared != cudaSuccess) return prepared;
  const DecodeInputs& in = d.inputs;
  const auto side = [](const SideFormat& s, const PlaneLevels& levels) {
    return PlaneSide{levels.steps,
                     levels.bits,
                     {s.planes[0], s.planes[1], s.planes[2], s.planes[3]},
                     pair_chunks(s.planes),
                     single_chunks(s.planes),
                     s.norm};
  };
  const PlaneArguments args{d.view.block_segments,
                            d.view.segments,
                            in.pages,
                            in.table,
                            in.q,
                            in.scale,
                            in.softcap,
                            f.kv_heads,
                            f.group,
                            static_cast<uint32_t>(page_bytes(f)),
                            block_bytes,
                            key_bytes,
                            plane_stage_bytes(D, block_bytes),
                            in.q_type == FloatType::bf16,
                            d.outputs.o_type == FloatType::bf16,
                            d.overlap,
                            side(f.k, in.k_levels),
                            side(f.v, in.v_levels),
                            partials_in(d.workspace, f, 1, d.plan.partials),
                            d.view.counters,
                            d.outputs.o,
                            d.outputs.lse,
                            in.sink_logits,
                            in.k_mean,
                            in.v_mean,
                            in.exact_slots,
                            in.exact_k,
                            in.exact_v};
  return launch_kernel(kernel, dim3((f.group + 3) / 4, d.plan.blocks), 32 * kWarps, shared, d.overlap,
                       d.stream, args);
}

// A block that is alone on a multiprocessor has as much under way as two, where the device has room for that.
template <int D>
cudaError_t launch_planes_dim(const DecodeLaunch& d) {
  constexpr int kStatic = plane_warps(D) * (4 * 8 + static_cast<int>(sizeof(Segment))) + 64;
  const int block_bytes = static_cast<int>(page_bytes(d.format) / d.format.kv_heads);
  if (d.plan.deep && plane_shared_bytes(D, block_bytes, 4) + kStatic <= d.shared_bytes) {
    return launch_plane_stages<D, 4, 1>(d);
  }
  return launch_plane_stages<D, 2, 2>(d);
}

}  // namespace oscar::cuda
