#include "kernels/cuda/write_rotated.cuh"

namespace oscar::cuda {

cudaError_t launch_write_rotated_few(int dim, const WriteArguments& a, cudaStream_t stream) {
  return launch_rotated<ClipClass::few, PackedRow>(dim, a, stream);
}

}  // namespace oscar::cuda
