#include "kernels/write.h"

namespace oscar::cuda {

Status write(const CacheFormat&, const WriteRule&, const WriteRows&, const WriteTarget&, void*) {
  return {"this build has no CUDA kernels: configure with -DOSCAR_WITH_CUDA=ON (cmake --preset cuda)"};
}

}  // namespace oscar::cuda
