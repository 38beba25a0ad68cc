// Internal: the kernels behind cuda::decode(), one launcher a family; decode.cu chooses.
#pragma once
#include <cuda_runtime.h>

#include "kernels/decode.h"
#include "kernels/decode_plan.h"

namespace oscar::cuda {

struct DecodeLaunch {
  const CacheFormat& format;
  const DecodeInputs& inputs;
  const DecodePlan& plan;
  PlanView view;  // on the device
  PlanCosts costs;
  void* workspace;
  const DecodeOutputs& outputs;
  bool overlap;      // programmatic dependent launch of the first kernel
  int shared_bytes;  // that a block may have
  cudaStream_t stream;
};
// The first kernel only; the second is launched by decode.cu.
cudaError_t launch_int2_native(const DecodeLaunch& launch);  // int2 keys and values, native pages
cudaError_t launch_int2_sglang(const DecodeLaunch& launch);
cudaError_t launch_vector(const DecodeLaunch& launch);  // vector codes on one side or both, native pages
cudaError_t launch_planes(const DecodeLaunch& launch);  // bit planes
Status check_vector(const CacheFormat& format);         // what check_format() cannot know: this device

// cudaLaunchKernelEx with the attribute that `overlap` asks for.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared,
                          bool overlap, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace oscar::cuda
