// Decode over pages of codes, timed: batches of equal sequences, their pages in a random order in a pool that launches rotate
// through, so that no cache helps.
#pragma once
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "kernels/decode.h"
#include "tests/bench/device_timing.h"

namespace oscar::bench {

class PagePool {
 public:
  static constexpr size_t kBytes = size_t{1} << 30;

  // The first device, which it prints. only: part of the names of rows that are timed; nullptr: all.
  PagePool(const char* only, int name_width) : only_(only ? only : ""), name_width_(name_width) {
    must(cuda::device_info(0, &device_));
    void* pool;
    must(cuda::allocate(kBytes + (64 << 20), &pool));
    pages = static_cast<uint8_t*>(pool);
    std::printf("%s, compute capability %d.%d, %d multiprocessors\n", device_.name, device_.major,
                device_.minor, device_.multiprocessors);
  }
  // Random codes; where sides have norms, halves in their places.
  void fill(const CacheFormat& f) {
    const int64_t key = side_bytes(f, f.k), block = key + side_bytes(f, f.v);
    fill_random<<<1024, 256>>>(reinterpret_cast<uint4*>(pages), kBytes / 16, 7, 0, 0);
    const size_t blocks = kBytes / static_cast<size_t>(block);
    for (const auto& [norm, end] : {std::pair{f.k.norm, key}, std::pair{f.v.norm, block}}) {
      if (norm) check(cudaMemset2D(pages + end - 128, block, 0x3a, 128, blocks), "fill");  // 0x3a3a is 0.78
    }
    check(cudaDeviceSynchronize(), "fill");
  }
  // in: what codes have beside them, books or levels, on the device.
  void row(const std::string& name, const CacheFormat& f, DecodeInputs in, int sequences, int length,
           bool steady) {
    if (name.find(only_) == std::string::npos) return;
    std::mt19937 random(1);
    const int64_t count = int64_t{sequences} * ((length + 63) / 64), bytes = count * page_bytes(f);
    std::vector<int32_t> end(sequences, length), order(kBytes / page_bytes(f));
    std::vector<int64_t> starts;
    for (int b = 0; b < sequences; ++b) starts.push_back(int64_t{b} * ((length + 63) / 64));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const int rotations =
        static_cast<int>(std::clamp<int64_t>(static_cast<int64_t>(order.size()) / count, 1, 64));
    int32_t* tables = on_device(order);
    std::normal_distribution<float> normal;
    std::vector<float> q(static_cast<size_t>(sequences) * f.kv_heads * f.group * f.dim);
    for (auto& x : q) x = normal(random);
    float* queries = on_device(q);
    in.q = queries;
    in.q_type = FloatType::f32;
    in.scale = 1 / std::sqrt(static_cast<float>(f.dim));
    in.pages = pages;
    const DecodeBatch batch{sequences, nullptr, end.data(), starts.data()};
    const cuda::DecodePlan limits = cuda::decode_plan_limits(f, sequences, device_);
    std::vector<uint8_t> memory(static_cast<size_t>(limits.bytes));
    cuda::DecodePlan plan;
    must(cuda::plan_decode(f, batch, device_, false, memory.data(), limits.bytes, &plan));
    uint8_t* plan_memory = on_device(memory);
    void *workspace, *o;
    must(cuda::allocate(static_cast<size_t>(limits.workspace), &workspace));
    must(cuda::allocate(q.size() * 4, &o));
    const auto launch = [&](bool overlap) {
      return [&, overlap](int rotation, cudaStream_t stream) {
        DecodeInputs now = in;
        now.table = tables + rotation * count;
        must(cuda::decode(f, now, plan, plan_memory, workspace, {o, FloatType::bf16, nullptr}, overlap,
                          stream));
      };
    };
    const double expected = static_cast<double>(bytes) / 3e6 + 5;
    const Timing plain = time_launches(launch(false), rotations, expected, steady);
    const Timing overlapped = time_launches(launch(true), rotations, expected, false);
    const size_t pieces = static_cast<size_t>(bytes / 16);
    const Timing ceiling = time_launches(
        [&](int r, cudaStream_t s) {
          read_only<<<device_.multiprocessors * 4, 512, 0, s>>>(
              reinterpret_cast<const uint4*>(pages) + r * pieces, pieces, reinterpret_cast<unsigned*>(o));
        },
        rotations, expected, false);
    std::printf(
        "%-*s %7.1f us %7.1f steady %7.1f overlapped | read-only %6.1f | %4.1f %% | %d blocks, %d parts\n",
        name_width_, name.c_str(), plain.burst, plain.steady, overlapped.burst, ceiling.burst,
        100 * ceiling.burst / plain.burst, plan.blocks, plan.partials);
    std::fflush(stdout);
    for (void* p : {static_cast<void*>(tables), static_cast<void*>(queries), static_cast<void*>(plan_memory),
                    workspace, o}) {
      cudaFree(p);
    }
  }
  // 32 sequences of 32k tokens, or all the sizes that are reported.
  void rows(const std::string& name, const CacheFormat& f, const DecodeInputs& in, bool all) {
    row("32x32k " + name, f, in, 32, 32768, all);
    if (!all) return;
    row("8x32k " + name, f, in, 8, 32768, false);
    row("32x8k " + name, f, in, 32, 8192, false);
    row("1x128k " + name, f, in, 1, 131072, false);
  }

  uint8_t* pages;

 private:
  std::string only_;
  int name_width_;
  cuda::DeviceInfo device_;
};

}  // namespace oscar::bench
