#include "kernels/cuda/gram.cuh"

namespace oscar::cuda {

cudaError_t launch_gram_64(const GramArguments& a, cudaStream_t stream) {
  return launch_gram<64>(a, stream);
}

}  // namespace oscar::cuda
