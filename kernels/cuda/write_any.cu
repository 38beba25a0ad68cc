#include "kernels/cuda/write_plain.cuh"

namespace oscar::cuda {

cudaError_t launch_write_any(int dim, const WriteArguments& a, cudaStream_t stream) {
  return launch_rows<ClipClass::any, PackedRow>(dim, a, stream);
}

}  // namespace oscar::cuda
