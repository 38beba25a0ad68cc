#include "libdump/memory_plan.h"

#include <algorithm>

#include "formats/error.h"

namespace oscar {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLibraries = 200 * kMiB;  // LibTorch, MKL and their tables, as far as a run touches them
constexpr int64_t kThread = 16 * kMiB;      // what a product packs its operands into, stacks, arenas

MemoryPlan with(const MemoryNeeds& n, int64_t limit, int block, bool spill, bool overlap) {
  MemoryPlan plan;
  plan.layers = n.layers;
  plan.layer = n.weights;
  plan.block = block;
  plan.spill = spill;
  plan.overlap = overlap;
  const int at_once = overlap ? 2 : 1;  // layers whose rows and results are held
  if (spill) plan.spilled = n.hidden + at_once * n.rows;
  const int64_t always = kLibraries + n.threads * kThread + n.text;
  const int64_t states = spill ? block * (n.longest_hidden + n.longest_rows) + (at_once - 1) * n.longest_rows
                               : n.hidden + at_once * n.rows;
  const int64_t computing = block * n.activations;
  const int64_t weights =
      overlap ? 2 * n.weights + n.loading + computing : n.weights + std::max(n.loading, computing);
  plan.peak = always + std::max(states + at_once * n.results + weights, n.assembly + (spill ? 0 : n.hidden));
  plan.limit = limit;
  if (limit == 0) plan.peak += computing + n.loading;  // what was freed is kept for the next operation
  return plan;
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{} MiB", (bytes + kMiB - 1) / kMiB);
}

}  // namespace

std::string MemoryPlan::text() const {
  return fmt::format(
      "{} layers of up to {}; {} sequence{} at a time; hidden states, k and v {}; next layer read {}; "
      "expected peak {}{}",
      layers, mebibytes(layer), block, block == 1 ? "" : "s",
      spill ? "spill to " + mebibytes(spilled) + " on disk" : "in memory",
      overlap ? "while one computes" : "when one is done", mebibytes(peak),
      limit > 0 ? " of " + mebibytes(limit) : "");
}

MemoryPlan plan_memory(const MemoryNeeds& needs, int64_t limit) {
  for (int block = std::max(needs.threads, 1); block >= 1; --block) {
    for (const bool overlap : {true, false}) {
      for (const bool spill : {false, true}) {
        const MemoryPlan plan = with(needs, limit, block, spill, overlap);
        if (limit == 0 || plan.peak <= limit) return plan;
      }
    }
  }
  throw invalid(
      "--memory {}: this model and these sequences need at least {}: two layers are not held at once then, "
      "one sequence "
      "runs at a time and hidden states are on disk. Allow that much, or lower --seq-len or --threads",
      mebibytes(limit), mebibytes(smallest_plan(needs).peak));
}

MemoryPlan smallest_plan(const MemoryNeeds& needs) {
  const MemoryPlan memory = with(needs, 1, 1, false, false), file = with(needs, 1, 1, true, false);
  return file.peak < memory.peak ? file : memory;
}

}  // namespace oscar
