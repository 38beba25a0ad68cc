// What a machine without a GPU, or a build without CUDA, says.
#include "kernels/device.h"

#include <gtest/gtest.h>

namespace oscar::cuda {
namespace {

TEST(Device, IsFoundOrItsAbsenceExplained) {
  DeviceInfo info;
  const Status status = device_info(0, &info);
  if (status.ok()) {
    EXPECT_GE(info.major, 8);
    EXPECT_GT(info.multiprocessors, 0);
    EXPECT_GT(info.memory, 0);
    EXPECT_STRNE(info.name, "");
  } else {
    EXPECT_GT(std::string(status.what).size(), 20u);
  }
}

TEST(Device, OneThatIsNotThereIsRefusedByNumber) {
  DeviceInfo info;
  EXPECT_FALSE(device_info(-1, &info).ok());
  EXPECT_FALSE(device_info(4096, &info).ok());
}

}  // namespace
}  // namespace oscar::cuda
