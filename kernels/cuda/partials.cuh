// What a segment leaves behind when it is one of several of a job: unnormalised outputs with their maxima and
// sums.
#pragma once
#include "kernels/cuda/common.cuh"
#include "kernels/decode_plan.h"

namespace oscar::cuda {

// Workspace: float o[partials][heads of a part][D], then float2 (m, l)[partials][heads of a part]; heads of a
// part = run * group. m is the reference of the exponentials in powers of two (of logits * log2 e), l = sum
// of exp2(x - m), o the same sum weighted with the values.
struct Partials {
  float* o;
  float2* ml;
};
inline Partials partials_in(void* workspace, const CacheFormat& f, int run, int count) {
  float* o = static_cast<float*>(workspace);
  return {o, reinterpret_cast<float2*>(o + int64_t{count} * run * f.group * f.dim)};
}

// The second kernel of a decode: one block per query head of a job whose parts it merges. Adds the sink
// logit, writes o and lse.
struct MergeArguments {
  Partials parts;
  const int32_t* merge_first;
  const float* sink_logits;
  void* o;
  float* lse;
  int kv_heads, group, run, dim;
  bool bf16;
};
// Chained by programmatic dependent launch where the device has it.
cudaError_t launch_merge(const MergeArguments& arguments, int sequences, int compute_major,
                         cudaStream_t stream);

// Where a segment is a job's only one, or all are merged: what o is multiplied with, and lse.
OSCAR_DEVICE float final_scale(float m, float l, const float* sink_logits, int head, float* lse) {
  const float sink = sink_logits ? sink_logits[head] * kLog2e : -INFINITY, top = fmaxf(m, sink);
  const float f = m > -INFINITY ? exp2_approx(m - top) : 0.f;
  l = l * f + (sink > -INFINITY ? exp2_approx(sink - top) : 0.f);
  if (lse) *lse = l > 0.f ? (top + log2f(l)) * kLn2 : -INFINITY;
  return l > 0.f ? f / l : 0.f;
}
OSCAR_DEVICE void store_pair(void* o, bool bf16, int64_t at, float x, float y) {
  if (bf16) {
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(o) + at) = __floats2bfloat162_rn(x, y);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(o) + at) = make_float2(x, y);
  }
}

}  // namespace oscar::cuda
