#include "kernels/cuda/decode_sglang.cuh"

namespace oscar::cuda {

cudaError_t launch_sglang_256_f32(const DecodeLaunch& d) {
  return launch_sglang_dim<256, float>(d);
}

}  // namespace oscar::cuda
