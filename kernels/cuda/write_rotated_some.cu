#include "kernels/cuda/write_rotated.cuh"

namespace oscar::cuda {

cudaError_t launch_write_rotated_some(int dim, const WriteArguments& a, cudaStream_t stream) {
  return launch_rotated<ClipClass::some, PackedRow>(dim, a, stream);
}

}  // namespace oscar::cuda
