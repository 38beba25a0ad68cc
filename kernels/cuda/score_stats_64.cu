#include "kernels/cuda/score_stats.cuh"

namespace oscar::cuda {

cudaError_t launch_stats_64(const StatsArguments& a, cudaStream_t stream) {
  return launch_stats<64>(a, stream);
}

}  // namespace oscar::cuda
