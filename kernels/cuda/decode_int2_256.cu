#include "kernels/cuda/decode_int2.cuh"

namespace oscar::cuda {

cudaError_t launch_native_256(const DecodeLaunch& d) {
  switch (d.format.k.groups) {
    case 1:
      return launch_native_dim<256, 1>(d);
    case 2:
      return launch_native_dim<256, 2>(d);
    case 8:
      return launch_native_dim<256, 8>(d);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::cuda
