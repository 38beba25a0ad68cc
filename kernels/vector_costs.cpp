#include "kernels/decode_plan.h"

namespace oscar {

// Measured on one H200 with 4 query heads a KV head; more heads are more passes over the same pages, so their
// ratios stay. A further segment costs its query, the warps' outputs and, with 8-channel keys, a table of
// products.
PlanCosts vector_plan_costs(const CacheFormat& f) {
  PlanCosts costs;
  costs.warps = 16;
  costs.blocks_per_sm = 1;
  costs.heads_outermost = true;
  costs.round_bytes = 16.0 * static_cast<double>(page_bytes(f)) / f.kv_heads;
  const bool table = f.k.kind == CodeKind::vector8x8;
  const double round = (table ? 1.63 : 2.44) * f.dim / 128 * ((f.group + 3) / 4);  // microseconds
  costs.round_latency = round;
  costs.segment = table ? 2.5 : 1;
  costs.exact_round = 0.75;
  costs.part_bytes = int64_t{4} * f.group * (f.dim + 2);
  return costs;
}

}  // namespace oscar
