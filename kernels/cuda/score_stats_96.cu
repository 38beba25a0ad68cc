#include "kernels/cuda/score_stats.cuh"

namespace oscar::cuda {

cudaError_t launch_stats_96(const StatsArguments& a, cudaStream_t stream) {
  return launch_stats<96>(a, stream);
}

}  // namespace oscar::cuda
