#include "kernels/diagnose_device.h"

namespace oscar::cuda {

Status diagnose(const DiagnoseProblem&, const DiagnoseResult&) {
  return {"this build has no CUDA kernels: configure with -DOSCAR_WITH_CUDA=ON (cmake --preset cuda)"};
}

}  // namespace oscar::cuda
