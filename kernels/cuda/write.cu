#include "kernels/write.h"

#include <bit>

#include "kernels/cuda/status.cuh"
#include "kernels/cuda/write.cuh"
#include "kernels/cuda/write_planes.cuh"
#include "kernels/cuda/write_vectors.cuh"

namespace oscar::cuda {

Status write(const CacheFormat& f, const WriteRule& rule, const WriteRows& in, const WriteTarget& target,
             void* stream) {
  if (Status s = check_write(f, rule, in, target); !s.ok()) return s;
  if (in.tokens == 0) return {};
  const auto on = static_cast<cudaStream_t>(stream);
  const SideFormat& side = target.keys ? f.k : f.v;
  const int64_t k = side_bytes(f, f.k), v = side_bytes(f, f.v);
  const bool native = f.layout == CacheLayout::native,
             packed = rule.round_bf16 || (in.type == FloatType::bf16 && !in.mean);
  WriteArguments a{};
  a.rows = in.rows;
  a.slots = in.slots;
  a.rotation = in.rotation;
  a.mean = in.mean;
  a.codes = target.codes;
  a.scale_zero = target.scale_zero;
  a.pages = native ? target.pages + (target.keys ? 0 : k) : nullptr;
  a.page_bytes = page_bytes(f);
  a.head_bytes = k + v;
  a.tokens = static_cast<int>(in.tokens);
  a.kv_heads = f.kv_heads;
  a.groups = side.groups;
  a.head_shift =
      (f.kv_heads & (f.kv_heads - 1)) == 0 ? std::countr_zero(static_cast<unsigned>(f.kv_heads)) : -1;
  a.clip_index = int2::clip_index(rule.clip, f.dim);
  a.step = rule.step;
  a.threshold = rule.threshold;
  a.layout = !native       ? WriteLayout::sglang
             : target.keys ? WriteLayout::native_keys
                           : WriteLayout::native_values;
  a.f32 = in.type == FloatType::f32;
  a.bisect = rule.bisect;
  a.bf16_scales = f.scale_zero == FloatType::bf16;
  a.rotation_per_head = in.rotation_per_head;
  // Native words hold tokens, so a warp wants tokens; sglang rows of a token's heads are neighbours.
  a.head_major = native || (in.rotation && (in.rotation_per_head || in.mean));
  if (side.kind == CodeKind::planes) {
    const bool bf16 = in.rotation ? rule.round_bf16 : packed;
    return status_of(launch_write_planes(f.dim, side, target.levels, target.keys, bf16, a, on),
                     "launching the write of bit planes");
  }
  if (side.kind != CodeKind::int2) {
    const bool exact = !side.norm && (rule.round_bf16 || (packed && !in.rotation));
    const auto family = in.rotation ? (exact ? launch_vectors_rotated_exact : launch_vectors_rotated_float)
                                    : (exact ? launch_vectors_exact : launch_vectors_float);
    const VectorArguments vectors{target.book, target.keys, side.norm, rule.round_bf16};
    return status_of(family(f.dim, side.kind == CodeKind::vector4x8 ? 4 : 8, a, vectors, on),
                     "launching the vector write");
  }
  const ClipClass clip = rule.step > 0 ? ClipClass::any : clip_class(f.dim, a.clip_index, rule.bisect);
  const auto plain = !packed                   ? launch_write_float
                     : clip == ClipClass::few  ? launch_write_few
                     : clip == ClipClass::some ? launch_write_some
                                               : launch_write_any;
  const auto rotated = !rule.round_bf16          ? launch_write_rotated_float
                       : clip == ClipClass::few  ? launch_write_rotated_few
                       : clip == ClipClass::some ? launch_write_rotated_some
                                                 : launch_write_rotated_any;
  const auto family = in.rotation ? rotated : plain;
  return status_of(family(f.dim, a, on), "launching the write");
}

}  // namespace oscar::cuda
