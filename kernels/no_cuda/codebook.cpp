#include "kernels/codebook_device.h"

namespace oscar::cuda {

Status nearest_codewords(const CodewordBatch&, void*) {
  return {"this build has no CUDA kernels: configure with -DOSCAR_WITH_CUDA=ON (cmake --preset cuda)"};
}

}  // namespace oscar::cuda
