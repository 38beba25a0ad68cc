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
  int32_t counter;  // the block that adds the last of the job's parts merges them, -1: the second kernel does
  int32_t first_part, parts;   // of the job, where counter is not -1
  int64_t table, exact_table;  // where the sequence begins in DecodeInputs::table and exact_slots
};

// Passes over a segment's pages by different query heads, at most.
inline constexpr int kMostPasses = 4;

// In memory, each from a multiple of 16 bytes: int32 counters[blocks][kMostPasses], int32 merge_first[jobs +
// 1], Segment block_segments[blocks], Segment segments[]. Job = sequence * (kv_heads / run) + head / run; the
// second kernel merges its parts [merge_first[job], merge_first[job + 1]), none where it has nothing to do.
struct PlanView {
  int32_t* counters;  // how many parts of a job and pass are there; 0 between two launches
  const Segment* segments;
  const int32_t* merge_first;
  const Segment* block_segments;  // the first of each block once more, so that a block begins after one load
};

// What a kernel tells the planner of itself.
struct PlanCosts {
  int run = 1;                   // KV heads of a segment, divides kv_heads
  int warps = 8;                 // pages that a block works on at a time: a round
  double round_bytes = 0;        // of such a round
  double exact_round = 0;        // rounds that a round of 8 * warps exact tokens is worth
  double round_latency = 1;      // microseconds that a round takes at least
  double segment = 1;            // rounds that a further segment costs
  int blocks_per_sm = 2;         // that are resident together
  bool heads_outermost = false;  // a block's segments share a KV head where they can
  int64_t part_bytes = 0;        // of a part
  int64_t own_merge_bytes = 0;   // of a job's parts that one block merges itself
};
PlanCosts plan_costs(const CacheFormat& format);
PlanCosts vector_plan_costs(const CacheFormat& format);  // where one side is vector codes
PlanCosts plane_plan_costs(const CacheFormat& format);   // bit planes

// plan_decode() with at most `blocks` blocks; 0: it chooses.
Status plan_with(const PlanCosts& costs, const CacheFormat& format, const DecodeBatch& batch,
                 int multiprocessors, int blocks, bool fixed, void* memory, int64_t capacity,
                 cuda::DecodePlan* plan);
// run: PlanCosts::run of the format.
PlanView plan_view(const cuda::DecodePlan& plan, int run, void* memory);

}  // namespace oscar
