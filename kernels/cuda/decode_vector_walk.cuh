// A block's way through the plan: its items one after the other, and in each the pages of every warp.
#pragma once
#include "kernels/cuda/decode_vector.cuh"
#include "kernels/cuda/decode_vector_lookup.cuh"

namespace oscar::cuda {

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

template <int kDim>
OSCAR_DEVICE QueryRows query_rows(const VectorArguments& a, const Item& item) {
  const bool bf16 = a.in.q_type == FloatType::bf16;
  const int64_t at =
      (int64_t{item.segment.sequence} * a.kv_heads + item.segment.head) * a.group + 4 * item.pass;
  return {static_cast<const uint8_t*>(a.in.q) + at * kDim * (bf16 ? 2 : 4), bf16,
          min(4, a.group - 4 * item.pass), a.in.scale * kLog2e, a.in.softcap * kLog2e};
}

}  // namespace oscar::cuda
