// Decode over vector codes: a warp owns a page of one KV head at a time, whose codes go straight to
// registers; the tables of words fill the shared memory of the multiprocessor, so a block is all of it. Keys
// and Values say what the codes are.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"
#include "kernels/cuda/decode_vector_softmax.cuh"
#include "kernels/cuda/decode_vector_walk.cuh"
#include "kernels/cuda/exact_rows_direct.cuh"

namespace oscar::cuda {

template <class Keys, class Values, int kDim>
struct VectorMemory {
  static constexpr int kOwn = 16 * (kDim + 2);  // bytes of a warp: its weights, then what it leaves
  static constexpr uint32_t kOwns = kTables + Keys::kTableBytes + Values::kTableBytes;
  static constexpr uint32_t kNumbers = kOwns + kBlockWarps * kOwn;  // of the items that warps are at
  static constexpr uint32_t kScratch = kNumbers + kBlockWarps * 8;  // 16 bytes a warp
  static constexpr uint32_t kScales = kScratch + kBlockWarps * 16;  // of the values' groups
  static constexpr uint32_t kUnread = kScales + 4 * kDim / 4;       // where touch() puts what nobody reads
  static constexpr int kEnd = kUnread + 32 * 16;
  // Words on their way into the tables: keys' over the values' table, which is made second, values' over the
  // warps' own.
  static constexpr uint32_t kStagedValues = kOwns;
  static constexpr uint32_t kStagedKeys = Values::kTableBytes > 0 ? kTables + Keys::kTableBytes : kOwns;
  static_assert(kBlockWarps * kOwn >= 256 * kDim && kOwn >= kShift + 256);
  static_assert(kEnd - kOwns == vector_warp_bytes(kDim));
};

// The end of a segment for one warp: from words to numbers, exact tokens, and all of it into the warp's own
// memory.
template <class Values, int kDim>
OSCAR_DEVICE void leave(const VectorArguments& a, const Item& item, AttentionState<kDim, 1, 1>& state,
                        uint32_t scales, float* owns, int stride) {
  const Segment& segment = item.segment;
  const int thread = thread_again(), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  float* const left = owns + warp * stride;
  const float* const v_mean = a.in.v_mean ? a.in.v_mean + segment.head * kDim : nullptr;
  const float mass = v_mean ? sum_over_g(state.l[0]) : 0.f;
  const float minimum = Values::kMinima ? sum_over_g(state.low[0][0]) : 0.f;
  Values::finish(state.o[0], scales, minimum, lane);
  if (v_mean) {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        state.o[0][i][r] = fmaf(mass, __ldg(v_mean + Values::channel(i, r, g)), state.o[0][i][r]);
      }
    }
  }
  Values::store(state.o[0], left + t * kDim, lane);
  if (segment.exact_end > segment.exact) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) state.o[0][i][r] = left[t * kDim + direct_channel(i, r, g)];
    }
    const ExactRows exact{a.in.exact_k + segment.head * kDim,
                          a.in.exact_v + segment.head * kDim,
                          a.in.exact_slots + segment.exact_table,
                          int64_t{a.kv_heads} * kDim,
                          segment.exact,
                          segment.exact_end};
    attend_exact_direct<kDim>(state, exact, query_rows<kDim>(a, item), warp, kBlockWarps, lane);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) left[t * kDim + direct_channel(i, r, g)] = state.o[0][i][r];
    }
  }
  const float l = sum_over_g(state.l[0]);
  if (g == 0) {
    left[4 * kDim + 2 * t] = state.m[0];
    left[4 * kDim + 2 * t + 1] = l;
  }
}

template <class Keys, class Values, int kDim>
__global__ __launch_bounds__(kBlockThreads, 1) void decode_vector(const __grid_constant__ VectorArguments a) {
  launch_dependents();
  using Memory = VectorMemory<Keys, Values, kDim>;
  extern __shared__ __align__(128) uint8_t memory[];
  if (shared_address(memory) > kTables) __trap();  // the launcher knows where memory begins
  if (__ldg(&a.plan.block_segments[blockIdx.x].count) == 0) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint32_t own = Memory::kOwns + warp * Memory::kOwn;

  Keys keys(lane);
  Values values(lane);
  const auto load_page = [&](const uint8_t* block) {
#pragma unroll
    for (int i = 0; i < Keys::kLoads; ++i) keys.load(block, i);
    keys.load_scales(block, lane, a.k_norm);
#pragma unroll
    for (int i = 0; i < Values::kLoads; ++i) values.load(block + a.key_bytes, i, lane);
    values.load_scales(block + a.key_bytes, lane, a.v_norm);
  };
  const auto stage_words = [&](int head) {
    const int at = 16 * thread_again();
    const int64_t from = int64_t{head} * 256 * kDim + at;
#pragma unroll
    for (int i = 0; i < 256 * kDim; i += 16 * kBlockThreads) {
      if constexpr (Keys::kStages) copy16(Memory::kStagedKeys + at + i, a.in.k_book.words + from + i);
      if constexpr (Values::kStages) copy16(Memory::kStagedValues + at + i, a.in.v_book.words + from + i);
    }
    if constexpr (Values::kStages) {
      if (at < 4 * Values::kGroups)
        copy16(Memory::kScales + at, a.in.v_book.scales + head * Values::kGroups + at / 4);
    }
    copy_commit();
  };

  const uint32_t number = Memory::kNumbers + 8 * warp;  // in shared memory: no register to spare
  store_shared2(number, 0, 0);
  __syncwarp();
  Item item(a, 0);
  Walk walk(a, item.segment);
  stage_words(item.segment.head);
  // Lines that are read soon, each by a thread of its own: the block's other segments, the next item's
  // queries. Copies that are under way at a time go to different places, though nobody reads them: 8 lines of
  // segments, 12 of queries, and 12 of those of the item after.
  const auto touch_lines = [&](const void* from, int bytes, int place, int most) {
    const int line = thread_again();
    if (line < most && 128 * line < bytes)
      touch(Memory::kUnread + 16 * (place + line), static_cast<const uint8_t*>(from) + 128 * line);
  };
  const auto touch_queries = [&](const Item& of, int number) {
    const QueryRows rows = query_rows<kDim>(a, of);
    touch_lines(rows.q, rows.heads * kDim * (rows.bf16 ? 2 : 4), number & 1 ? 20 : 8, 12);
  };
  touch_lines(a.plan.segments + item.segment.next,
              (item.segment.count - 1) * static_cast<int>(sizeof(Segment)), 0, 8);
  if (walk.end > 0) load_page(walk.page(a, 0));
  wait_preceding();
  touch_queries(item, 0);
  for (bool new_tables = true;;) {
    // In the last page of an item the first page of what comes next is loaded: its number is fetched
    // meanwhile.
    Walk after = walk;
    after.end = 0;
    if (!item.last) {
      const int following = static_cast<int>(load_shared(number)) + 1;
      const Item upcoming(a, following);
      after = Walk(a, upcoming.segment);
      touch_queries(upcoming, following);
    }
    keys.begin(a, query_rows<kDim>(a, item), item.segment.head, Memory::kScratch);
    if (new_tables) {
      copy_wait<0>();
      __syncthreads();
      Keys::build(Memory::kStagedKeys);
      __syncthreads();
      Values::build(Memory::kStagedValues);
      __syncthreads();
    }
    {
      const float* const k_mean = a.in.k_mean ? a.in.k_mean + item.segment.head * kDim : nullptr;
      const float shift = k_mean ? mean_logit<kDim>(query_rows<kDim>(a, item), k_mean, lane) : 0.f;
      store_shared2(own + kShift + 8 * lane, __float_as_uint(shift), 0);
      __syncwarp();
    }
    const uint8_t* const next = after.end > 0 ? after.page(a, 0) : nullptr;

    AttentionState<kDim, 1, 1> state;
    state.init();
    for (int at = 0; at < walk.end; at += Walk::kStride) {
      const int after = at + Walk::kStride;
      if (after % (32 * Walk::kStride) == 0) walk.fetch_ids(a, Item(a, load_shared(number)).segment, after);
      const uint8_t* following = walk.page(a, after);
      if (after >= walk.end) following = next;
      const bool more = following;
      float x[8];
      unsigned weights[4];
      keys.logits(x, following, more, a.k_norm, lane);
      const float scale = softmax_weights<Keys, Values, kDim>(
          x, weights, state, keys, values, a.in.softcap * kLog2e, walk.first - at, walk.end - at, own, lane);
      if (more) values.load_scales(following + a.key_bytes, lane, a.v_norm);
      values.accumulate(state.o[0], weights, scale, following + a.key_bytes, more, lane);
    }
    if (walk.end <= 0 && next) load_page(next);
    if (!(a.in.softcap > 0)) {
      state.m[0] += fmaf(keys.offset(), keys.unit, __uint_as_float(load_shared(own + kShift + 8 * lane)));
    }

    auto* const owns = reinterpret_cast<float*>(memory + (Memory::kOwns - shared_address(memory)));
    leave<Values, kDim>(a, Item(a, load_shared(number)), state, Memory::kScales, owns, Memory::kOwn / 4);
    __syncthreads();
    item = Item(a, load_shared(number));
    const int first_head = 4 * item.pass, head = item.segment.head * a.group + first_head;
    combine<kDim, 1, kBlockWarps, kDim>(owns, Memory::kOwn / 4, kBlockWarps, min(4, a.group - first_head),
                                        {a.parts, item.segment.partial, a.group, first_head, a.in.sink_logits,
                                         a.out.o, a.out.lse, a.out.o_type == FloatType::bf16,
                                         int64_t{item.segment.sequence} * a.kv_heads * a.group + head, head});
    if (item.last) return;
    __syncthreads();
    copy_commit();
    copy_wait<0>();  // for touched lines, which have long been here
    const int head_before = item.segment.head;
    const int following = load_shared(number) + 1;
    __syncwarp();
    store_shared2(number, following, 0);
    __syncwarp();
    item = Item(a, following);
    new_tables = item.segment.head != head_before;
    if (new_tables) stage_words(item.segment.head);
    walk = Walk(a, item.segment);
  }
}

}  // namespace oscar::cuda
