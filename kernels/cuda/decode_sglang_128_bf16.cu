#include "kernels/cuda/decode_sglang.cuh"

namespace oscar::cuda {

cudaError_t launch_sglang_128_bf16(const DecodeLaunch& d) {
  return launch_sglang_dim<128, __nv_bfloat16>(d);
}

}  // namespace oscar::cuda
