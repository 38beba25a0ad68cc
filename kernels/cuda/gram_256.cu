#include "kernels/cuda/gram.cuh"

namespace oscar::cuda {

cudaError_t launch_gram_256(const GramArguments& a, cudaStream_t stream) {
  return launch_gram<256>(a, stream);
}

}  // namespace oscar::cuda
