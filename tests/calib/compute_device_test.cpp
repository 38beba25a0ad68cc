#include "libcalib/compute_device.h"

#include <gtest/gtest.h>

#include "kernels/device.h"

namespace oscar {
namespace {

TEST(ComputeDevice, TheCpuHasNoNumberAndNamesItsLevel) {
  for (const char* text : {"", "cpu"}) {
    const ComputeDevice device = compute_device(text);
    EXPECT_LT(device.cuda, 0);
    EXPECT_EQ(device.name.substr(0, 4), "CPU ");
  }
}

TEST(ComputeDevice, OtherTextIsRefusedWithWhatIsExpected) {
  for (const char* text : {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda 0"}) {
    try {
      compute_device(text);
      FAIL() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("expected cpu, cuda or cuda:N"), std::string::npos)
          << error.what();
    }
  }
}

TEST(ComputeDevice, ACudaDeviceIsNamedOrItsAbsenceExplained) {
  cuda::DeviceInfo info;
  if (cuda::device_info(0, &info).ok()) {
    EXPECT_EQ(compute_device("cuda").name, info.name);
    EXPECT_EQ(compute_device("cuda:0").cuda, 0);
  } else {
    EXPECT_THROW(compute_device("cuda"), std::runtime_error);
  }
  EXPECT_THROW(compute_device("cuda:4096"), std::runtime_error);
}

}  // namespace
}  // namespace oscar
