#include "kernels/cuda/decode_planes.cuh"

namespace oscar::cuda {

cudaError_t launch_planes_256(const DecodeLaunch& d) {
  return launch_planes_dim<256>(d);
}

}  // namespace oscar::cuda
