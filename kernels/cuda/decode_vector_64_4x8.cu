#include "kernels/cuda/decode_vector_pairs.cuh"

namespace oscar::cuda {

cudaError_t launch_vector_64_4x8(const DecodeLaunch& d, const VectorArguments& arguments, int memory_begin) {
  return launch_keys<64, CodeKind::vector4x8>(d, arguments, memory_begin);
}

}  // namespace oscar::cuda
