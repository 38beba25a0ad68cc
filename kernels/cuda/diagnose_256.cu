#include "kernels/cuda/diagnose.cuh"

namespace oscar::cuda {

cudaError_t launch_diagnose_256(const DiagnoseArguments& a, cudaStream_t stream) {
  return launch_diagnose<256>(a, stream);
}

}  // namespace oscar::cuda
