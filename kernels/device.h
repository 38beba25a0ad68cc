// The GPU, where there is one: the least that callers of the kernels need of it. Without CUDA all of it
// exists and says so.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/status.h"

namespace oscar::cuda {

struct DeviceInfo {
  char name[128] = "";
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory = 0;  // bytes
};

// Refuses by name: no CUDA in this build, no driver, no such device, one older than compute capability 8.0, one
// for which this build has no machine code.
Status device_info(int device, DeviceInfo* info);
Status set_device(int device);  // of the calling thread

Status allocate(size_t bytes, void** memory);
void release(void* memory);
// Ordered on `stream`; upload and download return when the host memory may be touched again.
Status upload(void* device, const void* host, size_t bytes, void* stream);
Status download(void* host, const void* device, size_t bytes, void* stream);
Status clear(void* device, size_t bytes, void* stream);
Status synchronize(void* stream);

}  // namespace oscar::cuda
