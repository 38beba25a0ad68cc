#include <numeric>

#include "kernels/decode_plan.h"
#include "kernels/int2.h"

namespace oscar {
namespace {

// Query heads that one pass over the codes answers, and passes that run side by side
// (kernels/cuda/decode_int2.cuh).
int passes(const CacheFormat& f) {
  return f.dim <= 128 && f.group > 4 ? (f.group + 7) / 8 : (f.group + 3) / 4;
}

}  // namespace

PlanCosts plan_costs(const CacheFormat& f) {
  if (f.k.kind != CodeKind::int2 || f.v.kind != CodeKind::int2) return vector_plan_costs(f);
  PlanCosts costs;
  const bool native = f.layout == CacheLayout::native;
  costs.run = native ? 1 : std::gcd(8, f.kv_heads);
  costs.warps = native ? (f.dim > 128 ? 4 : 8) : 8 / costs.run;
  const double row = native ? page_bytes(f) / (64.0 * f.kv_heads)
                            : f.dim / 2.0 + 4 * f.k.groups * (f.scale_zero == FloatType::f32 ? 4 : 2);
  costs.round_bytes = row * 64 * costs.warps * costs.run;
  costs.exact_round =
      4 * f.dim / row * 16 / 64 * 1.5;  // a tile of 16 tokens; half as much again for its latency
  costs.segment = 2;
  const bool wide = f.dim <= 128 && f.group > 4 && f.dim > (native ? 64 : 0);
  costs.blocks_per_sm = wide || (!native && f.dim > 128) ? 1 : 2;
  costs.blocks_per_sm = costs.blocks_per_sm > passes(f) ? costs.blocks_per_sm / passes(f) : 1;
  return costs;
}

}  // namespace oscar
