#include "kernels/cuda/decode_int2.cuh"

namespace oscar::cuda {

cudaError_t launch_native_64(const DecodeLaunch& d) {
  switch (d.format.k.groups) {
    case 1:
      return launch_native_dim<64, 1>(d);
    case 2:
      return launch_native_dim<64, 2>(d);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::cuda
