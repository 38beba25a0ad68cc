#include "kernels/cuda/decode_planes.cuh"

namespace oscar::cuda {

cudaError_t launch_planes_96(const DecodeLaunch& d) {
  return launch_planes_dim<96>(d);
}

}  // namespace oscar::cuda
