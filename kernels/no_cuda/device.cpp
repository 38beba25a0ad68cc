#include "kernels/device.h"

namespace oscar::cuda {

static constexpr Status kNone{
    "this build has no CUDA kernels: configure with -DOSCAR_WITH_CUDA=ON (cmake --preset cuda)"};

Status device_info(int, DeviceInfo*) {
  return kNone;
}
Status set_device(int) {
  return kNone;
}
Status allocate(size_t, void**) {
  return kNone;
}
void release(void*) {}
Status upload(void*, const void*, size_t, void*) {
  return kNone;
}
Status download(void*, const void*, size_t, void*) {
  return kNone;
}
Status clear(void*, size_t, void*) {
  return kNone;
}
Status synchronize(void*) {
  return kNone;
}

}  // namespace oscar::cuda
