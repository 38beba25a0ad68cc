#include "kernels/cuda/write_planes_kernel.cuh"

namespace oscar::cuda {

cudaError_t launch_planes_packed(int dim, const WriteArguments& a, const PlaneArguments& p,
                                 cudaStream_t stream) {
  return launch_planes<false, PackedRow>(dim, a, p, stream);
}

}  // namespace oscar::cuda
