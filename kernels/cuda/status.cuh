// From the runtime's error codes to Status.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>

#include "kernels/status.h"

namespace oscar::cuda {

inline Status status_of(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return {};
  static thread_local char buffer[256];
  std::snprintf(buffer, sizeof buffer, "%s: %s (%s)", doing, cudaGetErrorString(error),
                cudaGetErrorName(error));
  return {buffer};
}

}  // namespace oscar::cuda
