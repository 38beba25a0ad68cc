#include "kernels/cuda/decode_int2.cuh"

namespace oscar::cuda {

cudaError_t launch_native_128(const DecodeLaunch& d) {
  switch (d.format.k.groups) {
    case 1:
      return launch_native_dim<128, 1>(d);
    case 2:
      return launch_native_dim<128, 2>(d);
    case 4:
      return launch_native_dim<128, 4>(d);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::cuda
