#include <numeric>

#include "kernels/decode_plan.h"
#include "kernels/int2_launch.h"

namespace oscar {

PlanCosts plan_costs(const CacheFormat& f) {
  if (f.k.kind == CodeKind::planes) return plane_plan_costs(f);
  if (f.k.kind != CodeKind::int2 || f.v.kind != CodeKind::int2) return vector_plan_costs(f);
  PlanCosts costs;
  const bool native = f.layout == CacheLayout::native;
  const Int2Launch launch =
      native ? int2_native_launch(f.dim, f.k.groups, f.group) : int2_sglang_launch(f.dim, f.group);
  costs.run = native ? 1 : std::gcd(8, f.kv_heads);
  costs.warps = native ? launch.warps : launch.warps / costs.run;
  const double row = native ? page_bytes(f) / (64.0 * f.kv_heads)
                            : f.dim / 2.0 + 4 * f.k.groups * (f.scale_zero == FloatType::f32 ? 4 : 2);
  costs.round_bytes = row * 64 * costs.warps * costs.run;
  // Engine rows: half as much again for the latency of a tile, which the ring of native pages hides.
  costs.exact_round = 4 * f.dim / row * 8 / 64 * (native ? 1 : 1.5);
  costs.round_latency = native ? 1.1 : 2.4;
  costs.segment = 2;
  costs.blocks_per_sm = launch.resident > launch.passes ? launch.resident / launch.passes : 1;
  costs.part_bytes = int64_t{4} * costs.run * f.group * (f.dim + 2);
  costs.own_merge_bytes = 144 << 10;
  return costs;
}

}  // namespace oscar
