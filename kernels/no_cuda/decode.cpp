#include "kernels/decode.h"

namespace oscar::cuda {

Status decode(const CacheFormat&, const DecodeInputs&, const DecodePlan&, void*, void*, const DecodeOutputs&,
              bool, void*) {
  return {"this build has no CUDA kernels: configure with -DOSCAR_WITH_CUDA=ON (cmake --preset cuda)"};
}

}  // namespace oscar::cuda
