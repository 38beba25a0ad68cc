#include "kernels/cuda/write_vectors_kernel.cuh"

namespace oscar::cuda {

cudaError_t launch_vectors_rotated_exact(int dim, int size, const WriteArguments& a, const VectorArguments& v,
                                         cudaStream_t stream) {
  return launch_vectors<true, true>(dim, size, a, v, stream);
}

}  // namespace oscar::cuda
