// Device memory with an owner, for tests and benchmarks.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "kernels/device.h"

namespace oscar::cuda {

// Ends the test where there is no device.
#define OSCAR_NEEDS_DEVICE(info) \
  DeviceInfo info;               \
  if (const Status found = device_info(0, &info); !found.ok()) GTEST_SKIP() << found.what

inline void require(Status status) {
  if (!status.ok()) throw std::runtime_error(status.what);
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) { require(allocate(count * sizeof(T) + 16, &memory_)); }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { *this = host; }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { release(memory_); }
  void operator=(const std::vector<T>& host) {
    require(upload(memory_, host.data(), host.size() * sizeof(T), nullptr));
  }
  T* get() const { return static_cast<T*>(memory_); }
  std::vector<T> host() const {
    std::vector<T> out(count_);
    require(download(out.data(), memory_, count_ * sizeof(T), nullptr));
    return out;
  }

 private:
  size_t count_;
  void* memory_ = nullptr;
};

}  // namespace oscar::cuda
