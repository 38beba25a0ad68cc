#include "kernels/cuda/diagnose.cuh"

namespace oscar::cuda {

cudaError_t launch_diagnose_64(const DiagnoseArguments& a, cudaStream_t stream) {
  return launch_diagnose<64>(a, stream);
}

}  // namespace oscar::cuda
