#include "kernels/device.h"

#include <thread>

#include "kernels/cuda/status.cuh"

namespace oscar::cuda {
namespace {

// Compiled for the architectures of all kernels.
__global__ void any_kernel() {}

// On a thread of its own: to set the caller's device back would make a context on a device nobody asked for.
cudaError_t find_kernel(int device) {
  cudaError_t error = cudaSuccess;
  std::thread([&] {
    error = cudaSetDevice(device);
    cudaFuncAttributes found;
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&found, any_kernel);
  }).join();
  return error;
}

}  // namespace

Status device_info(int device, DeviceInfo* info) {
  int count = 0;
  if (Status s = status_of(cudaGetDeviceCount(&count), "looking for CUDA devices"); !s.ok()) return s;
  static thread_local char buffer[512];
  if (device < 0 || device >= count) {
    std::snprintf(buffer, sizeof buffer, "no CUDA device %d: this machine has %d, numbered from 0", device,
                  count);
    return {buffer};
  }
  cudaDeviceProp properties;
  if (Status s = status_of(cudaGetDeviceProperties(&properties, device), "reading the device"); !s.ok())
    return s;
  if (properties.major < 8) {
    std::snprintf(buffer, sizeof buffer,
                  "%s has compute capability %d.%d: the kernels need 8.0 (A100) or newer; use the CPU",
                  properties.name, properties.major, properties.minor);
    return {buffer};
  }
  const cudaError_t code = find_kernel(device);
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
      code == cudaErrorInvalidKernelImage || code == cudaErrorUnsupportedPtxVersion) {
    std::snprintf(buffer, sizeof buffer,
                  "%s has compute capability %d.%d, for which this build has no machine code (%s): configure with "
                  "-DCMAKE_CUDA_ARCHITECTURES=%d%d%s",
                  properties.name, properties.major, properties.minor, cudaGetErrorString(code), properties.major,
                  properties.minor, properties.major >= 9 ? "a" : "");
    return {buffer};
  }
  if (Status s = status_of(code, "loading the kernels"); !s.ok()) return s;
  std::snprintf(info->name, sizeof info->name, "%s", properties.name);
  info->major = properties.major;
  info->minor = properties.minor;
  info->multiprocessors = properties.multiProcessorCount;
  info->memory = static_cast<int64_t>(properties.totalGlobalMem);
  return {};
}
Status set_device(int device) {
  return status_of(cudaSetDevice(device), "choosing the CUDA device");
}

Status allocate(size_t bytes, void** memory) {
  return status_of(cudaMalloc(memory, bytes), "allocating device memory");
}
void release(void* memory) {
  cudaFree(memory);
}

static Status copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, void* stream,
                   const char* doing) {
  const auto s = static_cast<cudaStream_t>(stream);
  if (Status status = status_of(cudaMemcpyAsync(to, from, bytes, kind, s), doing); !status.ok())
    return status;
  return status_of(cudaStreamSynchronize(s), doing);
}
Status upload(void* device, const void* host, size_t bytes, void* stream) {
  return copy(device, host, bytes, cudaMemcpyHostToDevice, stream, "copying to the device");
}
Status download(void* host, const void* device, size_t bytes, void* stream) {
  return copy(host, device, bytes, cudaMemcpyDeviceToHost, stream, "copying from the device");
}
Status clear(void* device, size_t bytes, void* stream) {
  return status_of(cudaMemsetAsync(device, 0, bytes, static_cast<cudaStream_t>(stream)),
                   "clearing device memory");
}
Status synchronize(void* stream) {
  return status_of(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "running on the device");
}

}  // namespace oscar::cuda
