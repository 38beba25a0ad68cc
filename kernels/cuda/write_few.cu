#include "kernels/cuda/write_plain.cuh"

namespace oscar::cuda {

cudaError_t launch_write_few(int dim, const WriteArguments& a, cudaStream_t stream) {
  return launch_rows<ClipClass::few, PackedRow>(dim, a, stream);
}

}  // namespace oscar::cuda
