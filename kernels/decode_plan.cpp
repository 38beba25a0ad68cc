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

// Bytes that one multiprocessor of an H200 gets in a microsecond when all stream, and what a second kernel
// takes (docs/kernels.md). They decide how finely work is cut.
constexpr double kBytesPerMicrosecond = 33e3, kMerge = 1.5, kMergePart = 0.06;

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
                         costs.exact_round * std::ceil(exact / (16.0 * costs.warps))});
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
    return time(slowest, blocks(), multiprocessors) + merging();
  }

  // Microseconds of the second kernel; the more parts a job has, the longer.
  double merging() {
    if (count_partials() == 0) return 0;
    return kMerge + kMergePart * *std::max_element(parts_.begin(), parts_.end());
  }

  int blocks() const { return static_cast<int>(block_first_.size()) - 1; }
  int count_partials() {
    parts_.assign(jobs_.size(), 0);
    for (const Piece& piece : segments_) ++parts_[piece.job];
    int partials = 0;
    for (const int parts : parts_) partials += parts > 1 ? parts : 0;
    return partials;
  }

  void write(int blocks_wanted, int runs, int32_t* block_first, int32_t* merge_first,
             Segment* block_segments) {
    count_partials();
    std::vector<int> slot(jobs_.size());
    std::vector<int> at(jobs_.size());
    for (size_t j = 0; j < jobs_.size(); ++j)
      at[jobs_[j].sequence * runs + jobs_[j].run] = static_cast<int>(j);
    int total = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      merge_first[i] = total;
      slot[at[i]] = total;
      total += parts_[at[i]] > 1 ? parts_[at[i]] : 0;
    }
    merge_first[at.size()] = total;
    Segment* segments = block_segments + blocks_wanted;
    for (size_t i = 0; i < segments_.size(); ++i) segments[i] = segment(segments_[i], slot);
    for (int b = 0; b <= blocks_wanted; ++b) block_first[b] = block_first_[std::min(b, blocks())];
    for (int b = 0; b < blocks_wanted; ++b) {
      const int count = block_first[b + 1] - block_first[b];
      if (count > 0) block_segments[b] = segments[block_first[b]];
      block_segments[b].count = count;
      block_segments[b].next = block_first[b] + 1;
    }
  }
  size_t segments() const { return segments_.size(); }

 private:
  struct Piece {
    size_t job;
    int page, pages;
    bool last;  // takes the exact tokens
  };
  Segment segment(const Piece& piece, std::vector<int>& slot) const {
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
    s.partial = parts_[piece.job] > 1 ? slot[piece.job]++ : -1;
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

int64_t bytes_of(int blocks, int64_t jobs, int64_t segments) {
  return aligned(4 * (blocks + 1)) + aligned(4 * (jobs + 1)) +
         (blocks + segments) * static_cast<int64_t>(sizeof(Segment));
}
int64_t workspace_of(const CacheFormat& f, const PlanCosts& costs, int64_t partials) {
  return partials * costs.run * f.group * (f.dim + 2) * 4 + 16;
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
      planner.choose(multiprocessors, multiprocessors);
      if (planner.chosen_time(multiprocessors) > full) planner.choose(most, multiprocessors);
    }
  }
  plan->blocks = fixed ? most : planner.blocks();
  plan->partials = planner.count_partials();
  plan->heads = batch.sequences * f.kv_heads;
  plan->bytes = bytes_of(plan->blocks, jobs, static_cast<int64_t>(planner.segments()));
  if (fixed) plan->partials = std::max(2 * most, plan->partials);
  plan->workspace = workspace_of(f, costs, plan->partials);
  if (plan->bytes > capacity) return {"decode plan: the memory is smaller than decode_plan_limits() says"};
  std::memset(memory, 0, static_cast<size_t>(plan->bytes));
  auto* block_first = static_cast<int32_t*>(memory);
  auto* merge_first = block_first + aligned(4 * (plan->blocks + 1)) / 4;
  auto* block_segments = reinterpret_cast<Segment*>(merge_first + aligned(4 * (jobs + 1)) / 4);
  planner.write(plan->blocks, runs, block_first, merge_first, block_segments);
  return {};
} catch (const std::bad_alloc&) {
  return {"decode plan: out of memory"};
}

PlanView plan_view(const cuda::DecodePlan& plan, int run, const void* memory) {
  const int64_t jobs = plan.heads / run;
  const auto* block_first = static_cast<const int32_t*>(memory);
  const auto* merge_first = block_first + aligned(4 * (plan.blocks + 1)) / 4;
  const auto* block_segments = reinterpret_cast<const Segment*>(merge_first + aligned(4 * (jobs + 1)) / 4);
  return {block_first, block_segments + plan.blocks, merge_first, block_segments};
}

namespace cuda {

DecodePlan decode_plan_limits(const CacheFormat& f, int sequences, const DeviceInfo& device) {
  const PlanCosts costs = plan_costs(f);
  const int most = most_blocks(costs, device.multiprocessors);
  const int64_t jobs = int64_t{sequences} * f.kv_heads / costs.run;
  return {most, 2 * most, sequences * f.kv_heads, bytes_of(most, jobs, jobs + most),
          workspace_of(f, costs, 2 * most)};
}

Status plan_decode(const CacheFormat& format, const DecodeBatch& batch, const DeviceInfo& device, bool fixed,
                   void* memory, int64_t capacity, DecodePlan* plan) {
  if (Status s = check_format(format); !s.ok()) return s;
  return plan_with(plan_costs(format), format, batch, device.multiprocessors, 0, fixed, memory, capacity,
                   plan);
}

}  // namespace cuda
}  // namespace oscar
