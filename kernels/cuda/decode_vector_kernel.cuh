// Decode over vector codes: a warp owns a page of one KV head at a time, whose codes go straight to
// registers; the tables of words fill the shared memory of the multiprocessor, so a block is all of it. Keys
// and Values say what the codes are.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"
#include "kernels/cuda/exact_rows_direct.cuh"

namespace oscar::cuda {

// Of a warp's own memory: 8 rows of 64 weights and 16 bytes more, so that they lie in different banks, and
// then for every lane what k_mean adds to the logits of its head.
inline constexpr int kWeightRow = 80, kShift = 8 * kWeightRow;

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

// Brings a line into L1 while something else goes on, through a copy that no register waits for.
OSCAR_DEVICE void touch(uint32_t unread, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(unread), "l"(from) : "memory");
}

// Volatile: read anew where it is needed, since it would not fit into registers beside the page loop.
OSCAR_DEVICE Segment load_segment(const Segment* from) {
  uint4 part[sizeof(Segment) / 16];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Segment) / 16); ++i) {
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(part[i].x), "=r"(part[i].y), "=r"(part[i].z), "=r"(part[i].w)
                 : "l"(reinterpret_cast<const uint4*>(from) + i));
  }
  Segment segment;
  __builtin_memcpy(&segment, part, sizeof segment);
  return segment;
}

// What a block does, one after the other: the passes of its segments, each over up to four query heads.
struct Item {
  Segment segment;
  int pass;
  bool last;

  OSCAR_DEVICE Item(const VectorArguments& a, int number) {
    const int passes = (a.group + 3) / 4, s = passes == 1 ? number : number / passes;
    pass = number - s * passes;
    segment = load_segment(a.plan.block_segments + blockIdx.x);
    const int count = segment.count;
    if (s > 0) segment = load_segment(a.plan.segments + segment.next + s - 1);
    last = s + 1 >= count && pass + 1 == passes;
  }
};

// A segment's pages that are one warp's, every 16th: kStride tokens from one to the next. Positions are
// counted from the beginning of the warp's first page.
struct Walk {
  static constexpr int kStride = 64 * kBlockWarps;
  const uint8_t* pages;  // the lane's 16 bytes of page 0
  int first, end, ids;   // visible tokens; ids of 32 pages, one a lane

  OSCAR_DEVICE Walk(const VectorArguments& a, const Segment& segment) {
    const int warp = thread_again() / 32, lane = thread_again() % 32, page = segment.first / 64 + warp;
    pages = a.in.pages + int64_t{segment.head} * a.block_bytes + 16 * lane;
    first = segment.first - 64 * page;
    end = segment.end > segment.first ? segment.end - 64 * page : 0;
    fetch_ids(a, segment, 0);
  }
  // at: position of a page whose number is a multiple of 32.
  OSCAR_DEVICE void fetch_ids(const VectorArguments& a, const Segment& segment, int at) {
    const int warp = thread_again() / 32, lane = thread_again() % 32;
    const int32_t* table = a.in.table + segment.table + segment.first / 64 + warp + at / 64;
    ids = at + lane * kStride < end ? __ldg(table + lane * kBlockWarps) : 0;
  }
  OSCAR_DEVICE const uint8_t* page(const VectorArguments& a, int at) const {
    return pages + int64_t{__shfl_sync(kWarp, ids, at / kStride % 32)} * a.page_bytes;
  }
};

// cap tanh(x / cap) from one exponential: exact to 2^-23 of the cap.
OSCAR_DEVICE float capped_approx(float x, float cap) {
  return cap - __fdividef(2 * cap, 1 + exp2_approx(__fdividef(2 * kLog2e * x, cap)));
}

// Weights of 64 tokens as the operand of Values, from the softmax of their logits.
template <class Keys, class Values, int kDim>
OSCAR_DEVICE float softmax_weights(float (&x)[8], unsigned (&weights)[4], AttentionState<kDim, 1, 1>& state,
                                   const Keys& keys, const Values& values, float softcap, int first, int end,
                                   uint32_t own, int lane) {
  const int g = lane >> 2, t = lane & 3, flip = Keys::kFlips ? t >> 1 : 0;
  float unit = keys.unit, scale[8], minimum[8];
  values.weights(scale, minimum, flip);
  if (softcap > 0) {
    const float shift = __uint_as_float(load_shared(own + kShift + 8 * t));
#pragma unroll
    for (int r = 0; r < 8; ++r) x[r] = capped_approx(fmaf(x[r] + keys.offset(), unit, shift), softcap);
    unit = 1;
  }
  if (first > 0 || end < 64) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int token = 8 * g + (r ^ flip);
      if (token < first || token >= end) {
        x[r] = -INFINITY;
        scale[r] = minimum[r] = 0;
      }
    }
  }
  const float top = max_over_g(fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])),
                                     fmaxf(fmaxf(x[4], x[5]), fmaxf(x[6], x[7])))) *
                    unit;
  state.make_room(0, top);
  // Fixed point relative to the page's own maximum, so that a heavy token elsewhere does not push these below
  // the last bit.
  float fixed = 65500.f, back = 1.f / 65500.f;
  if constexpr (Values::kWeighted) {
    float most = fmaxf(fmaxf(fmaxf(scale[0], scale[1]), fmaxf(scale[2], scale[3])),
                       fmaxf(fmaxf(scale[4], scale[5]), fmaxf(scale[6], scale[7])));
    most = fmaxf(max_over_g(most), 1e-12f);
    fixed = __fdividef(65500.f, most);
    back *= most;
  }
  const float to_state = exp2_approx(top - state.m[0]);
  float mass = 0, low = 0;
  unsigned w[8];  // the sum's low 16 bits
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const float p = exp2_approx(fmaf(x[r], unit, -top));
    mass += p;
    if constexpr (Values::kMinima) low = fmaf(p, minimum[r], low);
    w[r] = __float_as_uint(fmaf(p, Values::kWeighted ? scale[r] * fixed : fixed, 8388608.f));
  }
  state.l[0] = fmaf(to_state, mass, state.l[0]);
  if constexpr (Values::kMinima) state.low[0][0] = fmaf(to_state, low, state.low[0][0]);
  const unsigned order = flip ? 0x1504 : 0x5140;  // low bytes of two tokens, then high bytes
  const unsigned a0 = permute_bytes(w[0], w[1], order), a1 = permute_bytes(w[2], w[3], order),
                 a2 = permute_bytes(w[4], w[5], order), a3 = permute_bytes(w[6], w[7], order);
  const uint32_t row = own + 2 * t * kWeightRow + 8 * g;
  store_shared2(row, permute_bytes(a0, a1, 0x7632), permute_bytes(a2, a3, 0x7632));
  store_shared2(row + kWeightRow, permute_bytes(a0, a1, 0x5410), permute_bytes(a2, a3, 0x5410));
  __syncwarp();
  const uint4 operand = load_shared4(own + g * kWeightRow + 16 * t);
  __syncwarp();
  weights[0] = operand.x;
  weights[1] = operand.y;
  weights[2] = operand.z;
  weights[3] = operand.w;
  return to_state * back;
}

template <int kDim>
OSCAR_DEVICE QueryRows query_rows(const VectorArguments& a, const Item& item) {
  const bool bf16 = a.in.q_type == FloatType::bf16;
  const int64_t at =
      (int64_t{item.segment.sequence} * a.kv_heads + item.segment.head) * a.group + 4 * item.pass;
  return {static_cast<const uint8_t*>(a.in.q) + at * kDim * (bf16 ? 2 : 4), bf16,
          min(4, a.group - 4 * item.pass), a.in.scale * kLog2e, a.in.softcap * kLog2e};
}

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
  Item item(a, 0);
  Walk walk(a, item.segment);
  stage_words(item.segment.head);
  // Lines that are read soon, each by a thread of its own: the block's other segments, the next item's
  // queries.
  const auto touch_line = [&](const void* from, int bytes) {
    const int at = 128 * thread_again();
    if (at < bytes) touch(Memory::kUnread + 16 * lane, static_cast<const uint8_t*>(from) + at);
  };
  const auto touch_queries = [&](const Item& of) {
    const QueryRows rows = query_rows<kDim>(a, of);
    touch_line(rows.q, rows.heads * kDim * (rows.bf16 ? 2 : 4));
  };
  touch_line(a.plan.segments + item.segment.next,
             (item.segment.count - 1) * static_cast<int>(sizeof(Segment)));
  if (walk.end > 0) load_page(walk.page(a, 0));
  wait_preceding();
  touch_queries(item);
  for (bool new_tables = true;;) {
    // In the last page of an item the first page of what comes next is loaded: its number is fetched
    // meanwhile.
    Walk after = walk;
    after.end = 0;
    if (!item.last) {
      const Item upcoming(a, load_shared(number) + 1);
      after = Walk(a, upcoming.segment);
      touch_queries(upcoming);
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
    combine<kDim, 1, kBlockWarps>(owns, Memory::kOwn / 4, kBlockWarps, min(4, a.group - first_head),
                                  {a.parts, item.segment.partial, a.group, first_head, a.in.sink_logits,
                                   a.out.o, a.out.lse, a.out.o_type == FloatType::bf16,
                                   int64_t{item.segment.sequence} * a.kv_heads * a.group + head, head});
    if (item.last) return;
    __syncthreads();
    const int head_before = item.segment.head;
    const int following = load_shared(number) + 1;
    __syncwarp();
    store_shared2(number, following, 0);
    item = Item(a, following);
    new_tables = item.segment.head != head_before;
    if (new_tables) stage_words(item.segment.head);
    walk = Walk(a, item.segment);
  }
}

}  // namespace oscar::cuda
