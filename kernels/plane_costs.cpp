#include "kernels/decode_plan.h"
#include "kernels/plane_launch.h"

namespace oscar {

// As INT2 (plan_costs.cpp), whose kernel this one resembles: four query heads a pass, passes side by side.
PlanCosts plane_plan_costs(const CacheFormat& f) {
  PlanCosts costs;
  const int block = static_cast<int>(page_bytes(f) / f.kv_heads), passes = (f.group + 3) / 4;
  const int resident = plane_resident(f.dim, block);
  costs.warps = plane_warps(f.dim);
  costs.round_bytes = static_cast<double>(block) * costs.warps;
  costs.exact_round = 4.0 * f.dim * 8 / block;
  costs.round_latency = 1.1;
  costs.segment = 2;
  costs.blocks_per_sm = resident > passes ? resident / passes : 1;
  costs.part_bytes = int64_t{4} * f.group * (f.dim + 2);
  costs.own_merge_bytes = 144 << 10;
  return costs;
}

}  // namespace oscar
