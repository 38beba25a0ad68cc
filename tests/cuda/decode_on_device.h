// A decode on the GPU, from inputs that are there, and its distance from double arithmetic.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/decode.h"
#include "kernels/decode_plan.h"
#include "tests/cuda/coded_cache.h"
#include "tests/cuda/device_memory.h"

namespace oscar::cuda {

inline constexpr double kDecodeBound = 3e-4;  // of the output's relative L2 error

// The arrays of a cache on the device, and inputs that point there. What codes have beside them, who makes it adds.
class DeviceCache {
 public:
  DeviceCache(const CodedCache& c, const DecodeInputs& host)
      : in(host),
        q_(bytes_of(host.q, static_cast<size_t>(c.queries()) * c.format.dim *
                                (host.q_type == FloatType::f32 ? 4 : 2))),
        pages_(c.pages),
        k_codes_(c.k_codes),
        v_codes_(c.v_codes),
        k_scale_zero_(c.k_scale_zero),
        v_scale_zero_(c.v_scale_zero),
        exact_k_(c.exact_k),
        exact_v_(c.exact_v),
        table_(c.table),
        exact_slots_(c.exact_slots),
        sinks_(c.sink_logits),
        k_mean_(c.k_mean),
        v_mean_(c.v_mean) {
    in.q = q_.get();
    in.pages = pages_.get();
    in.k_codes = k_codes_.get();
    in.v_codes = v_codes_.get();
    in.k_scale_zero = k_scale_zero_.get();
    in.v_scale_zero = v_scale_zero_.get();
    in.exact_k = exact_k_.get();
    in.exact_v = exact_v_.get();
    in.table = table_.get();
    in.exact_slots = exact_slots_.get();
    if (in.sink_logits) in.sink_logits = sinks_.get();
    if (in.k_mean) in.k_mean = k_mean_.get();
    if (in.v_mean) in.v_mean = v_mean_.get();
  }
  DecodeInputs in;

 private:
  static std::vector<uint8_t> bytes_of(const void* from, size_t count) {
    const auto* begin = static_cast<const uint8_t*>(from);
    return {begin, begin + count};
  }
  DeviceArray<uint8_t> q_, pages_, k_codes_, v_codes_, k_scale_zero_, v_scale_zero_;
  DeviceArray<uint16_t> exact_k_, exact_v_;
  DeviceArray<int32_t> table_, exact_slots_;
  DeviceArray<float> sinks_, k_mean_, v_mean_;
};

// The largest error of a test, for its record.
struct Worst {
  double error = 0;
  ~Worst() { testing::Test::RecordProperty("worst", std::to_string(error)); }
  void check(double e, const std::string& what) {
    EXPECT_LT(e, kDecodeBound) << what;
    error = std::max(error, e);
  }
};

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
