#include "kernels/decode.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/partials.cuh"
#include "kernels/cuda/status.cuh"
#include "kernels/device.h"
#include "kernels/plane_launch.h"

namespace oscar::cuda {
namespace {

Status check_inputs(const CacheFormat& f, const DecodeInputs& in, const DecodeOutputs& out) {
  if (!in.q || !in.table || !out.o) return {"cuda::decode: q, table and o must be given"};
  if (in.q_type == FloatType::f16 || out.o_type == FloatType::f16)
    return {"cuda::decode: q and o are f32 or bf16"};
  if (f.layout == CacheLayout::native) {
    if (!in.pages) return {"cuda::decode: native pages must be given"};
    if (f.k.kind == CodeKind::int2 && f.v.kind == CodeKind::int2 && f.k.groups != f.v.groups) {
      return {"cuda::decode: int2 keys and values need the same number of groups"};
    }
  } else if (!in.k_codes || !in.v_codes || !in.k_scale_zero || !in.v_scale_zero) {
    return {"cuda::decode: sglang codes and scales must be given"};
  }
  if (f.k.kind == CodeKind::planes) {
    for (const PlaneLevels& levels : {in.k_levels, in.v_levels}) {
      if (!levels.steps || !levels.bits) return {"cuda::decode: bit planes need their steps and bits"};
    }
    return {};
  }
  if (f.k.kind != CodeKind::int2 && (!in.k_book.words || !in.k_book.scales)) {
    return {"cuda::decode: vector keys need their codebook"};
  }
  if (f.v.kind != CodeKind::int2 && (!in.v_book.words || !in.v_book.scales)) {
    return {"cuda::decode: vector values need their codebook"};
  }
  return {};
}

}  // namespace

Status decode(const CacheFormat& format, const DecodeInputs& inputs, const DecodePlan& plan,
              void* plan_memory, void* workspace, const DecodeOutputs& outputs, bool overlap, void* stream) {
  if (Status s = check_format(format); !s.ok()) return s;
  if (Status s = check_inputs(format, inputs, outputs); !s.ok()) return s;
  if (plan.heads == 0) return {};
  int device = 0, major = 0, shared_bytes = 0;  // asked every time: the current device may change
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const PlanCosts costs = plan_costs(format);
  const DecodeLaunch launch{format,       inputs,
                            plan,         plan_view(plan, costs.run, plan_memory),
                            costs,        workspace,
                            outputs,      overlap && major >= 9,
                            shared_bytes, static_cast<cudaStream_t>(stream)};
  const bool planes = format.k.kind == CodeKind::planes;
  const bool vectors = !planes && (format.k.kind != CodeKind::int2 || format.v.kind != CodeKind::int2);
  if (vectors) {
    if (Status s = check_vector(format); !s.ok()) return s;
  }
  if (planes) {
    constexpr int kStatic = 1024;
    const int block = static_cast<int>(page_bytes(format) / format.kv_heads);
    if (plane_shared_bytes(format.dim, block, 2) + kStatic > shared_bytes) {
      return {
          "cuda::decode: pages of these bit planes need more shared memory than a block of this device has: "
          "use the CPU, or fewer bits"};
    }
  }
  const auto family = planes                                 ? launch_planes
                      : vectors                              ? launch_vector
                      : format.layout == CacheLayout::sglang ? launch_int2_sglang
                                                             : launch_int2_native;
  if (Status s = status_of(family(launch), "launching decode"); !s.ok()) return s;
  if (!plan.second) return {};
  const MergeArguments merge{partials_in(workspace, format, costs.run, plan.partials),
                             launch.view.merge_first,
                             inputs.sink_logits,
                             outputs.o,
                             outputs.lse,
                             format.kv_heads,
                             format.group,
                             costs.run,
                             format.dim,
                             outputs.o_type == FloatType::bf16};
  return status_of(launch_merge(merge, plan.heads / format.kv_heads, major, launch.stream),
                   "launching the merge");
}

cudaError_t launch_native_64(const DecodeLaunch&);
cudaError_t launch_native_96(const DecodeLaunch&);
cudaError_t launch_native_128(const DecodeLaunch&);
cudaError_t launch_native_192(const DecodeLaunch&);
cudaError_t launch_native_256(const DecodeLaunch&);

cudaError_t launch_int2_native(const DecodeLaunch& launch) {
  switch (launch.format.dim) {
    case 64:
      return launch_native_64(launch);
    case 96:
      return launch_native_96(launch);
    case 128:
      return launch_native_128(launch);
    case 192:
      return launch_native_192(launch);
    default:
      return launch_native_256(launch);
  }
}

cudaError_t launch_planes_64(const DecodeLaunch&);
cudaError_t launch_planes_96(const DecodeLaunch&);
cudaError_t launch_planes_128(const DecodeLaunch&);
cudaError_t launch_planes_192(const DecodeLaunch&);
cudaError_t launch_planes_256(const DecodeLaunch&);

cudaError_t launch_planes(const DecodeLaunch& launch) {
  switch (launch.format.dim) {
    case 64:
      return launch_planes_64(launch);
    case 96:
      return launch_planes_96(launch);
    case 128:
      return launch_planes_128(launch);
    case 192:
      return launch_planes_192(launch);
    default:
      return launch_planes_256(launch);
  }
}

cudaError_t launch_sglang_64_f32(const DecodeLaunch&);
cudaError_t launch_sglang_64_bf16(const DecodeLaunch&);
cudaError_t launch_sglang_128_f32(const DecodeLaunch&);
cudaError_t launch_sglang_128_bf16(const DecodeLaunch&);
cudaError_t launch_sglang_256_f32(const DecodeLaunch&);
cudaError_t launch_sglang_256_bf16(const DecodeLaunch&);

cudaError_t launch_int2_sglang(const DecodeLaunch& launch) {
  const bool f32 = launch.format.scale_zero == FloatType::f32;
  switch (launch.format.dim) {
    case 64:
      return f32 ? launch_sglang_64_f32(launch) : launch_sglang_64_bf16(launch);
    case 128:
      return f32 ? launch_sglang_128_f32(launch) : launch_sglang_128_bf16(launch);
    default:
      return f32 ? launch_sglang_256_f32(launch) : launch_sglang_256_bf16(launch);
  }
}

}  // namespace oscar::cuda
