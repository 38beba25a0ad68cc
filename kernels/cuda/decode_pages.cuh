// Decode over native pages: a warp owns a page of one KV head at a time, brought in by one bulk copy into its
// own ring. What a page holds, and how it is attended to, Codes says:
//
//   Arguments                      PageArguments, and what is its own
//   D, NT, kWarps, kWeightBytes    head dim, tiles of four query heads, warps of a block, bytes of a warp's weights
//   block_bytes(args)              of a page of one KV head
//   stage_bytes(args)              of a stage of the ring: room for a page, or a tile of exact rows
//   Codes(args, shared, weights, lane)   shared: what is left of a block's shared memory behind the outputs
//   make_query(), begin()          of a segment; the first page may arrive in between
//   attend<partial>(page, …)       one page
//   finish()                       the AttentionState of what was attended to
#pragma once
#include <algorithm>

#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/exact_rows.cuh"
#include "kernels/cuda/launch.h"

namespace oscar::cuda {

// In the order of use: parameters come to a multiprocessor 64 bytes at a time.
struct PageArguments {
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
template <class Codes>
struct OwnPages {
  using Arguments = typename Codes::Arguments;
  static constexpr int kWarps = Codes::kWarps;
  const uint8_t* from;
  int count, ids;
  int whole, whole_end;  // pages [whole, whole_end) are visible from end to end, and logits not capped

  // Asks for the first ids at once.
  OSCAR_DEVICE OwnPages(const Arguments& args, const Segment& s, int warp, int lane)
      : from(args.pages + int64_t{s.head} * Codes::block_bytes(args)) {
    const int first = first_page(s, warp);
    count = s.end > s.first ? every(((s.end + 63) >> 6) - first) : 0;
    fetch(args, s, warp, 0, lane);
    whole = s.first > 64 * first;
    whole_end = args.softcap > 0.f ? 0 : every((s.end >> 6) - first);
  }
  static OSCAR_DEVICE int first_page(const Segment& s, int warp) { return (s.first >> 6) + warp; }
  // Begins the copy of page k < count; in the order of k, since ids come 32 at a time.
  OSCAR_DEVICE void copy(const Arguments& args, const Segment& s, int warp, int k, uint32_t to,
                         uint32_t barrier, int lane) {
    const uint8_t* at = multiply_add(__shfl_sync(kWarp, ids, k & 31), args.page_bytes, from);
    if constexpr (kBulkCopies) {
      if (elected()) {
        barrier_expect(barrier, Codes::block_bytes(args));
        bulk_copy(to, at, Codes::block_bytes(args), barrier);
      }
    } else {
      for (int i = lane; i < Codes::block_bytes(args) / 16; i += 32) copy16(to + 16 * i, at + 16 * i);
      copy_commit();
    }
    if ((k & 31) == 31) fetch(args, s, warp, k + 1, lane);
  }

 private:
  static OSCAR_DEVICE int every(int pages) { return max(0, (pages + kWarps - 1) / kWarps); }
  OSCAR_DEVICE void fetch(const Arguments& args, const Segment& s, int warp, int k, int lane) {
    const int32_t* table = args.table + s.table + first_page(s, warp);
    ids = k + lane < count ? __ldg(table + (k + lane) * kWarps) : 0;
  }
};

template <class Codes, int kStages, int kResident>
__global__ __launch_bounds__(32 * Codes::kWarps,
                             kResident) void decode_pages(const __grid_constant__
                                                          typename Codes::Arguments args) {
  launch_dependents();
  constexpr int D = Codes::D, NT = Codes::NT, kWarps = Codes::kWarps, kOutput = kLeft<D, NT>;
  static_assert((kStages & (kStages - 1)) == 0 && kMergeScratch * 32 <= 4 * kOutput);
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(16) uint64_t barriers[kWarps * kStages];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int stage_bytes = Codes::stage_bytes(args), own = kStages * stage_bytes + Codes::kWeightBytes;
  const uint32_t stages = shared_address(memory) + warp * own, weights = stages + kStages * stage_bytes;
  const uint32_t barrier = shared_address(barriers) + 8 * kStages * warp;
  float* outputs = reinterpret_cast<float*>(memory + kWarps * own);
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
  OwnPages<Codes> pages(args, segment, warp, lane);
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
    Codes codes(args, outputs + kWarps * kOutput, weights, lane);
    codes.make_query(rows, args.k_mean ? args.k_mean + segment.head * D : nullptr, segment.head, warp);
    if (kStages == 2 && s == 0 && gradual) copy_page(1);
    codes.begin();
    __syncwarp();
    uint32_t at = stages + stage_of(0) * stage_bytes, filled = barrier + 8 * stage_of(0);
    for (int k = 0; k < pages.count; ++k) {
      if constexpr (kBulkCopies) {
        barrier_wait(filled, (turn + k) / kStages & 1);
      } else {
        copy_wait<kStages - 1>();
        __syncwarp();
      }
      if (k >= pages.whole && k < pages.whole_end) {
        codes.template attend<false>(at, 0, 64, 0.f);
      } else {
        const int token = 64 * (pages.first_page(segment, warp) + k * kWarps);
        codes.template attend<true>(at, segment.first - token, segment.end - token, rows.softcap);
      }
      __syncwarp();
      if (k + kStages < pages.count) {
        pages.copy(args, segment, warp, k + kStages, at, filled, lane);
      } else {
        copy_tile(k + kStages - pages.count);
      }
      if constexpr (kStages == 2) {
        at = 2 * stages + stage_bytes - at;
        filled ^= 8;
      } else {
        at = stages + stage_of(k + 1) * stage_bytes;
        filled = barrier + 8 * stage_of(k + 1);
      }
    }
    __syncwarp();
    auto& state =
        codes.finish(segment.head, rows.softcap > 0.f, args.v_mean ? args.v_mean + segment.head * D : nullptr,
                     outputs + warp * kOutput);
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
      pages = OwnPages<Codes>(args, segment, warp, lane);
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

inline PageArguments page_arguments(const DecodeLaunch& d) {
  const DecodeInputs& in = d.inputs;
  return {d.view.block_segments,
          d.view.segments,
          in.pages,
          in.table,
          in.q,
          in.scale,
          in.softcap,
          d.format.kv_heads,
          d.format.group,
          static_cast<uint32_t>(page_bytes(d.format)),
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
}
// shared: bytes of dynamic shared memory.
template <class Codes, int kStages, int kResident>
cudaError_t launch_pages(const DecodeLaunch& d, const typename Codes::Arguments& args, int passes,
                         int shared) {
  auto* kernel = decode_pages<Codes, kStages, kResident>;
  const cudaError_t prepared =  // every time: the attribute is of the current device
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (prepared != cudaSuccess) return prepared;
  return launch_kernel(kernel, dim3(passes, d.plan.blocks), 32 * Codes::kWarps, shared, d.overlap, d.stream,
                       args);
}
// Whether a block that is alone on a multiprocessor has as much under way as two: where the plan wants that and the
// device has room. shared: with four stages.
template <class Codes>
bool deep(const DecodeLaunch& d, int shared) {
  constexpr int kStatic = Codes::kWarps * (4 * 8 + static_cast<int>(sizeof(Segment)));
  return d.plan.deep && shared + kStatic <= d.shared_bytes;
}

}  // namespace oscar::cuda
