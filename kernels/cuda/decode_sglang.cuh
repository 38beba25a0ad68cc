// Decode over the serving engine's own rows, where they lie: a block takes tiles of 64 tokens for eight (KV
// head, token part) pairs, a warp each, so that what neighbouring heads keep of a token is read together.
#pragma once
#include "kernels/cuda/int2_sglang.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/int2_launch.h"

namespace oscar::cuda {

struct SglangArguments {
  DecodeInputs in;
  DecodeOutputs out;
  PlanView plan;
  Partials parts;
  int kv_heads, group, run;  // run: KV heads of a block, 1, 2, 4 or 8
};

template <class Shape, class Meta, int kRun, int kStages, int kResident>
__global__ __launch_bounds__(256, kResident) void decode_int2_sglang(
    const __grid_constant__ SglangArguments args) {
  launch_dependents();
  using Tile = SglangTile<Shape, Meta, kRun>;
  constexpr int D = Shape::D, NT = Shape::NT, kWarps = 8, kIdStages = 4, kThreads = 256;
  constexpr int kStage = kWarps * Tile::kHeadBytes, kOwn = kStages * Tile::kHeadBytes;
  static_assert(4 * kLeft<D, NT> <= kOwn && 2 * kExactTileBytes<D> <= kOwn);
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) int32_t ids[kIdStages][64 * kWarps];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, run = kRun ? kRun : args.run,
            parts = kWarps / run;
  const int shift = __ffs(run) - 1, tile_tokens = 64 * parts, own_head = warp & (run - 1),
            own_part = warp >> shift;
  const uint32_t stages = shared_address(memory),
                 weights = stages + kStages * kStage + warp * Shape::kWeightBytes;
  const int head0 = blockIdx.x * 4 * NT;
  const int heads = min(4 * NT, args.group - head0), query_heads = args.kv_heads * args.group;
  const Tile of_lane(run, own_head, lane);
  bool waited = false;
  Segment segment = args.plan.block_segments[blockIdx.y];
  const int segments = segment.count, next = segment.next;
  for (int s = 0; s < segments; ++s) {
    if (s > 0) segment = args.plan.segments[next + s - 1];
    const int tokens = max(0, segment.end - segment.first), tiles = (tokens + tile_tokens - 1) / tile_tokens;
    const int32_t* table = args.in.table + segment.table + segment.first;
    // Of each of `count` things one after the other to a thread; without a loop where the count is known.
    const auto deal_out = [](int count, auto&& to_thread) {
      if constexpr (kRun > 0) {
#pragma unroll
        for (int i = 0; i < count; i += kThreads) {
          if (i + kThreads <= count || threadIdx.x < count - i) to_thread(i + threadIdx.x);
        }
      } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += kThreads) to_thread(i);
      }
    };
    const auto fetch_ids = [&](int tile) {
      if (tile >= tiles) return;
      deal_out(tile_tokens, [&](int i) {
        copy_small<4>(shared_address(&ids[tile % kIdStages][i]),
                      table + min(tile * tile_tokens + i, tokens - 1));
      });
    };
    // Heads of a token lie together: a thread copies the same 16 bytes of a few neighbouring tokens, which are
    // equally far apart in the stage.
    const auto issue = [&](int tile) {
      if (tile >= tiles) return;
      const int32_t* slots = ids[tile % kIdStages];
      const uint32_t stage = stages + tile % kStages * kStage;
      constexpr int kPieces = Tile::kRow / 16;
      {
        constexpr int kTokens = 64 * kWarps * kPieces / kThreads;
        static_assert(kTokens == 2 || kTokens == 4 || kTokens == 8);
        const int piece = threadIdx.x % kPieces, head = threadIdx.x / kPieces & (run - 1);
        const int token = kTokens * (threadIdx.x / kPieces >> shift), at = token & 63;
        const int from = (segment.head + head) * Tile::kRow + 16 * piece;
        const uint32_t to = stage + (token >> 6) * run * Tile::kHeadBytes + 16 * piece,
                       key_to = to + Tile::key_at(at, head, run),
                       value_to = to + Tile::values_offset(run) + Tile::value_at(at, head, run);
        int slot[kTokens];
#pragma unroll
        for (int n = 0; n < kTokens; n += 2) {
          const uint2 two = load_shared2(shared_address(slots + token + n));
          slot[n] = two.x;
          slot[n + 1] = two.y;
        }
#pragma unroll
        for (int n = 0; n < kTokens; ++n) {
          const uint32_t stride = args.kv_heads * Tile::kRow;
          copy16(key_to + n * 8 * run * Tile::kRow, multiply_add(slot[n], stride, args.in.k_codes + from));
          copy16(value_to + n * 4 * run * Tile::kRow, multiply_add(slot[n], stride, args.in.v_codes + from));
        }
      }
      constexpr int kHeadMeta = Shape::G * Tile::kPair;
      const int row = kHeadMeta * run, pieces = row >= 16 ? row / 16 : 1;
      const auto* k_meta = static_cast<const uint8_t*>(args.in.k_scale_zero) + segment.head * kHeadMeta;
      const auto* v_meta = static_cast<const uint8_t*>(args.in.v_scale_zero) + segment.head * kHeadMeta;
      deal_out(tile_tokens * pieces, [&](int i) {
        const int piece = i & (pieces - 1), token = i / pieces;
        const uint32_t to = stage + (token >> 6) * run * Tile::kHeadBytes + Tile::meta_offset(run) +
                            Tile::meta_at(token & 63, piece, run);
        const uint32_t stride = args.kv_heads * kHeadMeta;
        const uint8_t *k = multiply_add(slots[token], stride, k_meta + 16 * piece),
                      *v = multiply_add(slots[token], stride, v_meta + 16 * piece);
        if (row >= 16) {
          copy16(to, k);
          copy16(to + Tile::meta_bytes(run), v);
        } else if (row == 8) {
          copy_small<8>(to, k);
          copy_small<8>(to + Tile::meta_bytes(run), v);
        } else {
          copy_small<4>(to, k);
          copy_small<4>(to + Tile::meta_bytes(run), v);
        }
      });
    };
    for (int k = 0; k < kStages; ++k) fetch_ids(k);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    // Group k of copies: the data of tile k and the ids of tile k + kStages.
    for (int k = 0; k < kStages - 1; ++k) {
      issue(k);
      fetch_ids(k + kStages);
      copy_commit();
    }
    if (!waited) wait_preceding();
    waited = true;
    const int head = segment.head + own_head;
    const int64_t query = int64_t{segment.sequence} * query_heads + head * args.group + head0;
    const bool bf16 = args.in.q_type == FloatType::bf16;
    const QueryRows rows{static_cast<const char*>(args.in.q) + query * D * (bf16 ? 2 : 4), bf16, heads,
                         args.in.scale * kLog2e, args.in.softcap * kLog2e};
    Int2Query<Shape> q;
    LoadedQuery<Shape> loaded;
    load_query<Shape, Tile>(loaded, rows, lane);
    make_query<Shape, Tile>(q, loaded, rows, args.in.k_mean ? args.in.k_mean + head * D : nullptr, lane);
    AttentionState<D, NT, Shape::G> state;
    state.init();
    for (int k = 0; k < tiles; ++k) {
      copy_wait<kStages - 2>();
      __syncthreads();
      issue(k + kStages - 1);
      fetch_ids(k + 2 * kStages - 1);
      copy_commit();
      const Tile tile = of_lane.at(stages + k % kStages * kStage + own_part * run * Tile::kHeadBytes);
      const int end = tokens - k * tile_tokens - 64 * own_part;
      if (end >= 64 && !(rows.softcap > 0.f)) {
        attend_tile<Shape, false>(tile, q, state, weights, lane, 0, 64, 0.f);
      } else if (end > 0) {
        attend_tile<Shape, true>(tile, q, state, weights, lane, 0, end, rows.softcap);
      }
      __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();
    if (rows.softcap > 0.f) {
#pragma unroll
      for (int n = 0; n < NT; ++n) q.shift[n] = 0.f;
    }
    float* own = reinterpret_cast<float*>(memory + warp * kOwn);
    state.template finish_codes<Tile>(lane, q.shift, args.in.v_mean ? args.in.v_mean + head * D : nullptr);
    state.template reorder<Tile>(lane, own);
    if (segment.exact_end > segment.exact) {
      const ExactRows exact{args.in.exact_k + head * D,
                            args.in.exact_v + head * D,
                            args.in.exact_slots + segment.exact_table,
                            int64_t{args.kv_heads} * D,
                            segment.exact + kExactTokens * own_part,
                            segment.exact_end};
      const auto at = [&](int j) { return shared_address(own) + (j & 1) * kExactTileBytes<D>; };
      const int step = kExactTokens * parts;
      ExactTiles<D> exact_tiles;
      exact_tiles.begin(exact, step, lane);
      for (int j = 0; j < 2; ++j) exact_tiles.copy(exact, step, j, at(j), lane);
      attend_exact<2>(state, exact_tiles, exact, step, rows, at, lane);
      copy_wait<0>();
      __syncwarp();
    }
    state.leave(lane, own);
    __syncthreads();
    for (int h = 0; h < run; ++h) {
      const int head_of = (segment.head + h) * args.group + head0;
      combine<D, NT, kWarps>(
          reinterpret_cast<const float*>(memory + h * kOwn), run * kOwn / 4, parts, heads,
          {args.parts, segment.partial, run * args.group, h * args.group + head0, args.in.sink_logits,
           args.out.o, args.out.lse, args.out.o_type == FloatType::bf16,
           int64_t{segment.sequence} * query_heads + head_of, head_of});
    }
    if (segment.counter >= 0 &&
        is_last_part(args.plan.counters + segment.counter * kMostPasses + blockIdx.x, segment.parts)) {
      const int head_of = segment.head * args.group + head0;
      const SegmentOutput out{args.parts,
                              0,
                              run * args.group,
                              head0,
                              args.in.sink_logits,
                              args.out.o,
                              args.out.lse,
                              args.out.o_type == FloatType::bf16,
                              int64_t{segment.sequence} * query_heads + head_of,
                              head_of};
      merge_parts<8>(out.merged(segment.first_part, segment.parts, run, args.group, heads), D, memory);
    }
    __syncthreads();
  }
}

template <class Shape, class Meta, int kRun, int kResident>
cudaError_t launch_sglang(const DecodeLaunch& d, int passes) {
  constexpr int kShared = 8 * (2 * SglangTile<Shape, Meta, kRun>::kHeadBytes + Shape::kWeightBytes);
  auto* kernel = decode_int2_sglang<Shape, Meta, kRun, 2, kResident>;
  const cudaError_t prepared =  // every time: the attribute is of the current device
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (prepared != cudaSuccess) return prepared;
  const SglangArguments args{d.inputs,
                             d.outputs,
                             d.view,
                             partials_in(d.workspace, d.format, d.costs.run, d.plan.partials),
                             d.format.kv_heads,
                             d.format.group,
                             d.costs.run};
  return launch_kernel(kernel, dim3(passes, d.plan.blocks), 256, kShared, d.overlap, d.stream, args);
}

template <class Shape, class Meta, int kResident>
cudaError_t launch_sglang_run(const DecodeLaunch& d, int passes) {
  return d.costs.run == 8 ? launch_sglang<Shape, Meta, 8, kResident>(d, passes)
                          : launch_sglang<Shape, Meta, 0, kResident>(d, passes);
}
template <int D, class Meta, int G>
cudaError_t launch_sglang_groups(const DecodeLaunch& d) {
  constexpr Int2Launch kOne = int2_sglang_launch(D, 1), kTwo = int2_sglang_launch(D, 8);
  const int passes = int2_sglang_launch(D, d.format.group).passes;
  if constexpr (kTwo.tiles == 2) {
    if (d.format.group > 4) return launch_sglang_run<Int2Shape<D, G, 2>, Meta, kTwo.resident>(d, passes);
  }
  return launch_sglang_run<Int2Shape<D, G, 1>, Meta, kOne.resident>(d, passes);
}
template <int D, class Meta>
cudaError_t launch_sglang_dim(const DecodeLaunch& d) {
  switch (d.format.k.groups) {
    case 1:
      return launch_sglang_groups<D, Meta, 1>(d);
    case 2:
      return launch_sglang_groups<D, Meta, 2>(d);
    default:
      return launch_sglang_groups<D, Meta, 4>(d);
  }
}

}  // namespace oscar::cuda
