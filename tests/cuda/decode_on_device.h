// A decode on the GPU, from inputs that are there, and its distance from double arithmetic.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/decode.h"
#include "kernels/decode_plan.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {

struct Decoded {
  std::vector<float> o, lse;
};
struct How {
  bool fixed = false, overlap = false;  // overlap: three times in a row
  int blocks = 0;                       // 0: what the plan chooses
};

// Outputs and workspace begin as NaN.
inline Decoded decode_on_device(const CacheFormat& format, const DecodeBatch& batch, const DecodeInputs& in,
                                const DeviceInfo& device, const How& how) {
  const DecodePlan limits = decode_plan_limits(format, batch.sequences, device);
  std::vector<uint8_t> memory(static_cast<size_t>(limits.bytes));
  DecodePlan plan;
  if (how.blocks > 0) {
    require(plan_with(plan_costs(format), format, batch, device.multiprocessors, how.blocks, false,
                      memory.data(), limits.bytes, &plan));
  } else {
    require(plan_decode(format, batch, device, how.fixed, memory.data(), limits.bytes, &plan));
  }
  EXPECT_LE(plan.workspace, limits.workspace);
  const DeviceArray<uint8_t> plan_memory(memory),
      workspace(std::vector<uint8_t>(static_cast<size_t>(plan.workspace), 0xff));
  const size_t queries = static_cast<size_t>(batch.sequences) * format.kv_heads * format.group;
  const DeviceArray<float> o(std::vector<float>(queries * format.dim, NAN)),
      lse(std::vector<float>(queries, NAN));
  const DecodeOutputs out{o.get(), FloatType::f32, lse.get()};
  for (int i = 0; i < (how.overlap ? 3 : 1); ++i) {
    require(decode(format, in, plan, plan_memory.get(), workspace.get(), out, how.overlap, nullptr));
  }
  require(synchronize(nullptr));
  return {o.host(), lse.host()};
}

// Relative L2 error of the output against decode_reference() on the same codes, host memory; lse within what 16-bit queries
// leave.
inline double error_against_reference(const Decoded& got, const CacheFormat& format, const DecodeBatch& batch,
                                      const DecodeInputs& host) {
  std::vector<double> o(got.o.size()), lse(got.lse.size());
  require(decode_reference(format, batch, host, o.data(), lse.data()));
  double difference = 0, power = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    difference += (got.o[i] - o[i]) * (got.o[i] - o[i]);
    power += o[i] * o[i];
  }
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(lse[i])) {
      EXPECT_EQ(got.lse[i], lse[i]);
    } else {
      EXPECT_NEAR(got.lse[i], lse[i], 2e-3) << "query " << i;
    }
  }
  return std::sqrt(difference / power);
}

}  // namespace oscar::cuda
