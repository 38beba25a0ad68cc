#include "kernels/cuda/decode_planes.cuh"

namespace oscar::cuda {

cudaError_t launch_planes_192(const DecodeLaunch& d) {
  return launch_planes_dim<192>(d);
}

}  // namespace oscar::cuda
