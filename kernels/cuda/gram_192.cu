#include "kernels/cuda/gram.cuh"

namespace oscar::cuda {

cudaError_t launch_gram_192(const GramArguments& a, cudaStream_t stream) {
  return launch_gram<192>(a, stream);
}

}  // namespace oscar::cuda
