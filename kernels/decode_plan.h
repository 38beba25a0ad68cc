// Internal: what is inside a plan, and how it is made.
#pragma once
#include <cstdint>

#include "kernels/decode.h"

namespace oscar {

// Coded tokens [first, end) and exact tokens [exact, exact_end) of one sequence and a run of KV heads that
// share a block.
struct alignas(16) Segment {
  int32_t sequence, head;  // head: first of the run
  int32_t first, end;      // first: a multiple of 64 unless it is the sequence's first visible token
  int32_t exact, exact_end;
  int32_t partial;  // index of the part written, -1: writes the output itself
  int32_t count;    // first of a block: segments of the block
  int32_t next;     // first of a block: index in PlanView::segments of its second
  int32_t reserved[3];
  int64_t table, exact_table;  // where the sequence begins in DecodeInputs::table and exact_slots
};

// In memory, each from a multiple of 16 bytes: int32 block_first[blocks + 1], int32 merge_first[jobs + 1],
// Segment block_segments[blocks], Segment segments[block_first[blocks]]. Job = sequence * (kv_heads / run) +
// head / run; its parts are [merge_first[job], merge_first[job + 1]), none where one segment wrote the
// output.
struct PlanView {
  const int32_t* block_first;
  const Segment* segments;
  const int32_t* merge_first;
  const Segment* block_segments;  // the first of each block once more, so that a block begins after one load
};

// What a kernel tells the planner of itself.
struct PlanCosts {
  int run = 1;                   // KV heads of a segment, divides kv_heads
  int warps = 8;                 // pages that a block works on at a time: a round
  double round_bytes = 0;        // of such a round
  double exact_round = 0;        // rounds that a round of 16 * warps exact tokens is worth
  double round_latency = 1;      // microseconds that a round takes at least
  double segment = 1;            // rounds that a further segment costs
  int blocks_per_sm = 2;         // that are resident together
  bool heads_outermost = false;  // a block's segments share a KV head where they can
};
PlanCosts plan_costs(const CacheFormat& format);
PlanCosts vector_plan_costs(const CacheFormat& format);  // where one side is vector codes

// plan_decode() with at most `blocks` blocks; 0: it chooses.
Status plan_with(const PlanCosts& costs, const CacheFormat& format, const DecodeBatch& batch,
                 int multiprocessors, int blocks, bool fixed, void* memory, int64_t capacity,
                 cuda::DecodePlan* plan);
// run: PlanCosts::run of the format.
PlanView plan_view(const cuda::DecodePlan& plan, int run, const void* memory);

}  // namespace oscar
