#include "kernels/cuda/decode_vector_pairs.cuh"

namespace oscar::cuda {

cudaError_t launch_vector_128_int2(const DecodeLaunch& d, const VectorArguments& arguments,
                                   int memory_begin) {
  return launch_keys<128, CodeKind::int2>(d, arguments, memory_begin);
}

}  // namespace oscar::cuda
