#include "kernels/cuda/decode_sglang.cuh"

namespace oscar::cuda {

cudaError_t launch_sglang_256_bf16(const DecodeLaunch& d) {
  return launch_sglang_dim<256, __nv_bfloat16>(d);
}

}  // namespace oscar::cuda
