#include "kernels/decode_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "kernels/device.h"
#include "kernels/int2.h"

namespace oscar {
namespace {

constexpr int kPage = int2::kPageTokens;
constexpr int64_t aligned(int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

// Bytes that one multiprocessor of an H200 gets in a microsecond when all stream; what merging takes, by a
// second kernel and by a job's last block (docs/kernels.md). They decide how finely work is cut.
constexpr double kBytesPerMicrosecond = 33e3, kMerge = 2.5, kMergePart = 0.06, kOwnMerge = 1,
                 kOwnMergeBytes = 60e3;

constexpr int kDeepRounds = 8;  // work that gains from more stages although they fill more slowly

struct Job {
  int sequence, run;  // run: of KV heads
  int first_page, pages;
  double exact;  // rounds of its exact tokens
};

class Planner {
 public:
  Planner(const PlanCosts& costs, const CacheFormat& format, const DecodeBatch& batch)
      : costs_(costs), batch_(batch) {
    const int runs = format.kv_heads / costs.run;
    for (int outer = 0; outer < (costs.heads_outermost ? runs : batch.sequences); ++outer) {
      for (int inner = 0; inner < (costs.heads_outermost ? batch.sequences : runs); ++inner) {
        const int b = costs.heads_outermost ? inner : outer, run = costs.heads_outermost ? outer : inner;
        const int first = batch.first ? batch.first[b] : 0, end = std::max(batch.end[b], first);
        const int exact = batch.exact ? batch.exact[b] : 0, first_page = first / kPage;
        jobs_.push_back({b, run, first_page, end > first ? (end + kPage - 1) / kPage - first_page : 0,
                         costs.exact_round * std::ceil(exact / (8.0 * costs.warps))});
      }
    }
    longest_ = 0;
    for (const Job& job : jobs_) longest_ = std::max(longest_, rounds(job) + job.exact);
  }

  // Blocks of at most `capacity` rounds; `whole`: no job is cut. Returns their number.
  int fill(double capacity, bool whole) {
    segments_.clear();
    block_first_.assign(1, 0);
    double used = 0;
    const auto next_block = [&] {
      block_first_.push_back(static_cast<int>(segments_.size()));
      used = 0;
    };
    for (size_t j = 0; j < jobs_.size(); ++j) {
      const Job& job = jobs_[j];
      int page = 0;
      bool done = false;
      while (!done) {
        const bool fresh = static_cast<int>(segments_.size()) == block_first_.back();
        const double room = fresh ? std::max(capacity, 1.0) : capacity - used - costs_.segment;
        const int left = job.pages - page, left_rounds = (left + costs_.warps - 1) / costs_.warps;
        if (left_rounds + job.exact <= room + 1e-9 || (fresh && (whole || left_rounds <= 1))) {
          add(j, page, left, true);
          used += (fresh ? 0 : costs_.segment) + left_rounds + job.exact;
          done = true;
        } else if (!whole && room >= 1 && left > 0) {
          // The exact tokens may be what does not fit: then at least a round is left for the block that takes
          // them.
          const int take = std::min({static_cast<int>(room), std::max(left_rounds - 1, 0)}) * costs_.warps;
          if (take > 0) {
            add(j, page, take, false);
            page += take;
          }
          next_block();
        } else {
          next_block();
        }
      }
    }
    if (static_cast<int>(segments_.size()) > block_first_.back()) next_block();
    return static_cast<int>(block_first_.size()) - 1;
  }

  // Every job in equal parts of at most `capacity` rounds, a block each.
  int fill_even(double capacity) {
    segments_.clear();
    block_first_.assign(1, 0);
    for (size_t j = 0; j < jobs_.size(); ++j) {
      const int all = rounds(jobs_[j]);
      const double room = std::max(capacity - jobs_[j].exact, 1.0);
      const int parts = std::max(1, static_cast<int>(std::ceil(all / room)));
      for (int i = 0; i < parts; ++i) {
        const int begin = static_cast<int>(int64_t{all} * i / parts) * costs_.warps;
        const int end =
            i + 1 == parts ? jobs_[j].pages : static_cast<int>(int64_t{all} * (i + 1) / parts) * costs_.warps;
        add(j, begin, end - begin, i + 1 == parts);
        block_first_.push_back(static_cast<int>(segments_.size()));
      }
    }
    return blocks();
  }

  // At most `most` blocks, cut so that the slowest ends early.
  void choose(int most, int multiprocessors) {
    double low = 0, high = 1;
    for (const Job& job : jobs_) high += rounds(job) + job.exact + costs_.segment;
    for (int i = 0; i < 60 && high - low > 1e-3; ++i) {
      const double middle = (low + high) / 2;
      (fill(middle, false) <= most ? high : low) = middle;
    }
    const int cut = fill(high, false);
    const double cut_time = time(high, cut, multiprocessors) + merging();
    if (count_partials() == 0) return;
    double whole_capacity = longest_;
    for (double capacity = longest_; capacity < 4 * longest_; capacity *= 1.1) {
      whole_capacity = capacity;
      if (fill(capacity, true) <= most) break;
    }
    const int blocks = fill(whole_capacity, true);
    double best = cut_time;
    const bool whole = blocks <= most && time(whole_capacity, blocks, multiprocessors) <= best;
    if (whole) best = time(whole_capacity, blocks, multiprocessors);
    double even = std::max(longest_, 1.0);
    for (double capacity = even; capacity >= 1 && fill_even(capacity) <= most; capacity /= 1.02)
      even = capacity;
    // A little slower by the numbers is preferred: no block changes its job.
    if (fill_even(even) <= most && chosen_time(multiprocessors) <= 1.04 * best) return;
    whole ? fill(whole_capacity, true) : fill(high, false);
  }
  double chosen_time(int multiprocessors) {
    return time(most_rounds(), blocks(), multiprocessors) + merging();
  }
  // Of the block that has most.
  double most_rounds() const {
    double slowest = 0;
    for (size_t b = 0; b + 1 < block_first_.size(); ++b) {
      double rounds = 0;
      for (int s = block_first_[b]; s < block_first_[b + 1]; ++s) {
        const Piece& piece = segments_[s];
        rounds += (s > block_first_[b] ? costs_.segment : 0) +
                  (piece.pages + costs_.warps - 1) / costs_.warps + (piece.last ? jobs_[piece.job].exact : 0);
      }
      slowest = std::max(slowest, rounds);
    }
    return slowest;
  }

  // Microseconds of merging; the more parts a job has, the longer.
  double merging() {
    if (count_partials() == 0) return 0;
    const int most = *std::max_element(parts_.begin(), parts_.end());
    if (merged_by_block(most))
      return kOwnMerge + static_cast<double>(most * costs_.part_bytes) / kOwnMergeBytes;
    return kMerge + kMergePart * most;
  }

  int blocks() const { return static_cast<int>(block_first_.size()) - 1; }
  int count_partials() {
    parts_.assign(jobs_.size(), 0);
    for (const Piece& piece : segments_) ++parts_[piece.job];
    int partials = 0;
    for (const int parts : parts_) partials += parts > 1 ? parts : 0;
    return partials;
  }
  bool one_segment_a_block() const { return segments_.size() + 1 == block_first_.size(); }
  // A block that waits between two segments to count its part loses more than a second kernel costs.
  bool merged_by_block(int parts) const {
    return one_segment_a_block() && parts * costs_.part_bytes <= costs_.own_merge_bytes;
  }
  // After count_partials().
  bool needs_second_kernel() const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [&](int parts) { return parts > 1 && !merged_by_block(parts); });
  }

  // Parts of the second kernel's jobs come first, so that they are a range each.
  void write(int blocks_wanted, int runs, int32_t* merge_first, Segment* block_segments) {
    count_partials();
    std::vector<Slot> slots(jobs_.size());
    std::vector<int> at(jobs_.size());
    for (size_t j = 0; j < jobs_.size(); ++j)
      at[jobs_[j].sequence * runs + jobs_[j].run] = static_cast<int>(j);
    int total = 0, counters = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      merge_first[i] = total;
      const int parts = parts_[at[i]];
      if (parts > 1 && !merged_by_block(parts)) {
        slots[at[i]] = {total, total, -1};
        total += parts;
      }
    }
    merge_first[at.size()] = total;
    for (const int j : at) {
      if (parts_[j] > 1 && merged_by_block(parts_[j])) {
        slots[j] = {total, total, counters++};
        total += parts_[j];
      }
    }
    Segment* segments = block_segments + blocks_wanted;
    for (size_t i = 0; i < segments_.size(); ++i) segments[i] = segment(segments_[i], slots);
    for (int b = 0; b < blocks_wanted; ++b) {
      const int first = block_first_[std::min(b, blocks())],
                count = block_first_[std::min(b + 1, blocks())] - first;
      if (count > 0) block_segments[b] = segments[first];
      block_segments[b].count = count;
      block_segments[b].next = first + 1;
    }
  }
  size_t segments() const { return segments_.size(); }

 private:
  struct Piece {
    size_t job;
    int page, pages;
    bool last;  // takes the exact tokens
  };
  struct Slot {
    int first = 0, next = 0;  // parts of the job: where they begin, the next to give away
    int counter = -1;
  };
  Segment segment(const Piece& piece, std::vector<Slot>& slots) const {
    const Job& job = jobs_[piece.job];
    const int b = job.sequence, first = batch_.first ? batch_.first[b] : 0,
              end = std::max(batch_.end[b], first);
    const int begin_page = job.first_page + piece.page, exact = batch_.exact ? batch_.exact[b] : 0;
    Segment s = {};
    s.sequence = b;
    s.head = job.run * costs_.run;
    s.first = std::max(first, begin_page * kPage);
    s.end = std::min(end, (begin_page + piece.pages) * kPage);
    s.exact_end = piece.last ? exact : 0;
    Slot& slot = slots[piece.job];
    s.partial = parts_[piece.job] > 1 ? slot.next++ : -1;
    s.counter = slot.counter;
    s.first_part = slot.first;
    s.parts = parts_[piece.job];
    s.table = batch_.table_start[b];
    s.exact_table = exact > 0 ? batch_.exact_start[b] : 0;
    return s;
  }
  void add(size_t job, int page, int pages, bool last) { segments_.push_back({job, page, pages, last}); }
  int rounds(const Job& job) const { return (job.pages + costs_.warps - 1) / costs_.warps; }
  double time(double rounds, int blocks, int multiprocessors) const {
    const double resident = std::ceil(static_cast<double>(blocks) / multiprocessors);
    return rounds * std::max(costs_.round_bytes * resident / kBytesPerMicrosecond, costs_.round_latency);
  }

  const PlanCosts& costs_;
  const DecodeBatch& batch_;
  std::vector<Job> jobs_;
  std::vector<Piece> segments_;
  std::vector<int> block_first_, parts_;
  double longest_;
};

int most_blocks(const PlanCosts& costs, int multiprocessors) {
  return costs.blocks_per_sm * multiprocessors;
}

// Fewer jobs are cut than there are blocks, so a counter a block is enough.
int64_t counter_bytes(int blocks) {
  return int64_t{4} * kMostPasses * blocks;
}
int64_t bytes_of(int blocks, int64_t jobs, int64_t segments) {
  return counter_bytes(blocks) + aligned(4 * (jobs + 1)) +
         (blocks + segments) * static_cast<int64_t>(sizeof(Segment));
}
int64_t workspace_of(const PlanCosts& costs, int64_t partials) {
  return partials * costs.part_bytes + 16;
}

Status check_batch(const CacheFormat& f, const DecodeBatch& batch) {
  if (Status s = check_format(f); !s.ok()) return s;
  if (batch.sequences < 0 || (batch.sequences > 0 && (!batch.end || !batch.table_start))) {
    return {"decode batch: every sequence needs an end and a place in the table"};
  }
  if (batch.exact && !batch.exact_start) return {"decode batch: exact tokens need a place in exact_slots"};
  for (int b = 0; b < batch.sequences; ++b) {
    if (batch.end[b] < 0 || (batch.first && batch.first[b] < 0) || (batch.exact && batch.exact[b] < 0)) {
      return {"decode batch: a position or a count is negative"};
    }
  }
  return {};
}

}  // namespace

Status plan_with(const PlanCosts& costs, const CacheFormat& f, const DecodeBatch& batch, int multiprocessors,
                 int blocks, bool fixed, void* memory, int64_t capacity, cuda::DecodePlan* plan) try {
  if (Status s = check_batch(f, batch); !s.ok()) return s;
  const int most = most_blocks(costs, multiprocessors), runs = f.kv_heads / costs.run;
  const int64_t jobs = int64_t{batch.sequences} * runs;
  Planner planner(costs, f, batch);
  if (blocks > 0) {
    planner.choose(blocks, multiprocessors);
  } else {
    planner.choose(most, multiprocessors);
    const double full = planner.chosen_time(multiprocessors);
    if (most > multiprocessors) {
      // Alone on a multiprocessor nobody works while a block changes its segment.
      planner.choose(multiprocessors, multiprocessors);
      if (!planner.one_segment_a_block() || planner.chosen_time(multiprocessors) > full)
        planner.choose(most, multiprocessors);
    }
  }
  plan->blocks = fixed ? most : planner.blocks();
  plan->partials = planner.count_partials();
  plan->heads = batch.sequences * f.kv_heads;
  plan->deep = !fixed && costs.blocks_per_sm > 1 && planner.blocks() <= multiprocessors &&
               planner.most_rounds() >= kDeepRounds;
  plan->second = fixed || planner.needs_second_kernel();
  plan->bytes = bytes_of(plan->blocks, jobs, static_cast<int64_t>(planner.segments()));
  if (fixed) plan->partials = std::max(2 * most, plan->partials);
  plan->workspace = workspace_of(costs, plan->partials);
  if (plan->bytes > capacity) return {"decode plan: the memory is smaller than decode_plan_limits() says"};
  std::memset(memory, 0, static_cast<size_t>(plan->bytes));
  auto* merge_first = reinterpret_cast<int32_t*>(static_cast<uint8_t*>(memory) + counter_bytes(plan->blocks));
  auto* block_segments = reinterpret_cast<Segment*>(merge_first + aligned(4 * (jobs + 1)) / 4);
  planner.write(plan->blocks, runs, merge_first, block_segments);
  return {};
} catch (const std::bad_alloc&) {
  return {"decode plan: out of memory"};
}

PlanView plan_view(const cuda::DecodePlan& plan, int run, void* memory) {
  const int64_t jobs = plan.heads / run;
  auto* counters = static_cast<int32_t*>(memory);
  const int32_t* merge_first = counters + counter_bytes(plan.blocks) / 4;
  const auto* block_segments = reinterpret_cast<const Segment*>(merge_first + aligned(4 * (jobs + 1)) / 4);
  return {counters, block_segments + plan.blocks, merge_first, block_segments};
}

namespace cuda {

DecodePlan decode_plan_limits(const CacheFormat& f, int sequences, const DeviceInfo& device) {
  const PlanCosts costs = plan_costs(f);
  const int most = most_blocks(costs, device.multiprocessors);
  const int64_t jobs = int64_t{sequences} * f.kv_heads / costs.run;
  return {most,
          2 * most,
          true,
          false,
          sequences * f.kv_heads,
          bytes_of(most, jobs, jobs + most),
          workspace_of(costs, 2 * most)};
}

Status plan_decode(const CacheFormat& format, const DecodeBatch& batch, const DeviceInfo& device, bool fixed,
                   void* memory, int64_t capacity, DecodePlan* plan) {
  if (Status s = check_format(format); !s.ok()) return s;
  return plan_with(plan_costs(format), format, batch, device.multiprocessors, 0, fixed, memory, capacity,
                   plan);
}

}  // namespace cuda
}  // namespace oscar
