#include "kernels/decode.h"
#include "kernels/int2.h"
#include "kernels/plane_pages.h"

namespace oscar {
namespace {

// A GPU holds the sum of every place in registers.
Status check_planes(const CacheFormat& f, const int (&planes)[kPlanes]) {
  for (int p = 0; p < kPlanes; ++p) {
    if (planes[p] < 0 || planes[p] % 8 != 0 || planes[p] > (p == 0 ? f.dim : planes[p - 1])) {
      return {"cache format: bit planes hold a multiple of 8 channels, none more than the one before or dim"};
    }
  }
  if (planes[0] == 0) return {"cache format: the first bit plane holds no channel"};
  if (plane_places(planes) > 2 * f.dim) {
    return {
        "cache format: bit planes have 2 dim places at most, pairs by 32, singles by 64: plane_channels()"};
  }
  return {};
}

Status check_side(const CacheFormat& f, const SideFormat& side) {
  if (side.kind == CodeKind::int2) {
    if (side.norm) return {"cache format: row norms belong to vector codes and bit planes, not to int2"};
    const bool native = f.layout == CacheLayout::native;
    if (native && (side.groups < 1 || f.dim % (32 * side.groups) != 0)) {
      return {"cache format: native int2 rows have groups of a multiple of 32 channels"};
    }
    if (!native && side.groups != 1 && side.groups != 2 && side.groups != 4) {
      return {"cache format: sglang rows have 1, 2 or 4 groups"};
    }
    return {};
  }
  if (f.layout != CacheLayout::native) {
    return {"cache format: vector codes and bit planes live in native pages only"};
  }
  if (side.kind == CodeKind::planes) return check_planes(f, side.planes);
  if (f.dim != 64 && f.dim != 128) return {"cache format: vector codes need a head dimension of 64 or 128"};
  return {};
}

}  // namespace

Status check_format(const CacheFormat& f) {
  if (f.kv_heads < 1 || f.kv_heads > 65535) return {"cache format: kv_heads must be in [1, 65535]"};
  if (f.group < 1 || f.group > 16) return {"cache format: 1 to 16 query heads share a KV head"};
  if (f.layout == CacheLayout::native) {
    if (f.dim != 64 && f.dim != 96 && f.dim != 128 && f.dim != 192 && f.dim != 256) {
      return {"cache format: native pages have head dimensions 64, 96, 128, 192 or 256"};
    }
  } else {
    if (f.dim != 64 && f.dim != 128 && f.dim != 256) {
      return {"cache format: sglang rows have head dimensions 64, 128 or 256"};
    }
    if (f.k.groups != f.v.groups)
      return {"cache format: sglang keys and values have the same number of groups"};
    if (f.scale_zero == FloatType::f16) return {"cache format: sglang scales are f32 or bf16"};
  }
  if ((f.k.kind == CodeKind::planes) != (f.v.kind == CodeKind::planes)) {
    return {"cache format: keys and values are both bit planes, or neither"};
  }
  if (Status s = check_side(f, f.k); !s.ok()) return s;
  return check_side(f, f.v);
}

int64_t side_bytes(const CacheFormat& f, const SideFormat& side) {
  if (side.kind == CodeKind::int2) return int2::native_bytes(f.dim, side.groups);
  if (side.kind == CodeKind::planes) return plane_bytes(side.planes, side.norm);
  const int size = side.kind == CodeKind::vector4x8 ? 4 : 8;
  return int2::kPageTokens * (f.dim / size + (side.norm ? 2 : 0));
}

int64_t page_bytes(const CacheFormat& f) {
  return f.kv_heads * (side_bytes(f, f.k) + side_bytes(f, f.v));
}

}  // namespace oscar
