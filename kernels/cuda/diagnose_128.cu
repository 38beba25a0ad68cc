#include "kernels/cuda/diagnose.cuh"

namespace oscar::cuda {

cudaError_t launch_diagnose_128(const DiagnoseArguments& a, cudaStream_t stream) {
  return launch_diagnose<128>(a, stream);
}

}  // namespace oscar::cuda
