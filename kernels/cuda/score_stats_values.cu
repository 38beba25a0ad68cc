#include "kernels/cuda/score_stats_kernel.cuh"

namespace oscar::cuda {

cudaError_t launch_stats_values(const StatsArguments& a, cudaStream_t stream) {
  return launch_stats_kernel<true>(a, stream);
}

}  // namespace oscar::cuda
