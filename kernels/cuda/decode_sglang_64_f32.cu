#include "kernels/cuda/decode_sglang.cuh"

namespace oscar::cuda {

cudaError_t launch_sglang_64_f32(const DecodeLaunch& d) {
  return launch_sglang_dim<64, float>(d);
}

}  // namespace oscar::cuda
