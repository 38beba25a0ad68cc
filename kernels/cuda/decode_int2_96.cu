#include "kernels/cuda/decode_int2.cuh"

namespace oscar::cuda {

cudaError_t launch_native_96(const DecodeLaunch& d) {
  switch (d.format.k.groups) {
    case 1:
      return launch_native_dim<96, 1>(d);
    case 3:
      return launch_native_dim<96, 3>(d);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::cuda
