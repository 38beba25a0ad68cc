#include "kernels/cuda/gram.cuh"

namespace oscar::cuda {

cudaError_t launch_gram_96(const GramArguments& a, cudaStream_t stream) {
  return launch_gram<96>(a, stream);
}

}  // namespace oscar::cuda
