#include "kernels/cuda/decode_int2.cuh"

namespace oscar::cuda {

cudaError_t launch_native_192(const DecodeLaunch& d) {
  switch (d.format.k.groups) {
    case 1:
      return launch_native_dim<192, 1>(d);
    case 2:
      return launch_native_dim<192, 2>(d);
    case 6:
      return launch_native_dim<192, 6>(d);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::cuda
