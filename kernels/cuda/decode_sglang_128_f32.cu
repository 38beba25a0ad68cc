#include "kernels/cuda/decode_sglang.cuh"

namespace oscar::cuda {

cudaError_t launch_sglang_128_f32(const DecodeLaunch& d) {
  return launch_sglang_dim<128, float>(d);
}

}  // namespace oscar::cuda
