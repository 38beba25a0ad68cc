// Decode over bit planes on a GPU, with the plan that the library makes; see docs/performance.md.
//
//   bench_decode_planes [part of a row's name]
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "kernels/decode.h"
#include "kernels/device.h"
#include "kernels/plane_pages.h"
#include "tests/bench/device_timing.h"

namespace oscar::bench {
namespace {

constexpr size_t kPool = size_t{1} << 30;  // of pages: launches rotate through it, so that no cache helps
cuda::DeviceInfo g_device;
uint8_t* g_pool;

PlaneLevels levels(const CacheFormat& f, const SideFormat& side) {
  std::vector<float> steps(static_cast<size_t>(f.kv_heads * f.dim), 0.5f);
  std::vector<uint8_t> bits;
  for (int i = 0; i < f.kv_heads * f.dim; ++i) {
    const int channel = i % f.dim;
    bits.push_back(static_cast<uint8_t>(
        std::count_if(side.planes, side.planes + 4, [&](int n) { return channel < n; })));
  }
  return {on_device(steps), on_device(bits)};
}

// Random codes; where sides have norms, halves in their places.
void fill(const CacheFormat& f) {
  const int key = static_cast<int>(side_bytes(f, f.k)), block = key + static_cast<int>(side_bytes(f, f.v));
  fill_random<<<1024, 256>>>(reinterpret_cast<uint4*>(g_pool), kPool / 16, 7, 0, 0);
  const size_t blocks = kPool / static_cast<size_t>(block);
  for (const auto& [norm, end] : {std::pair{f.k.norm, key}, std::pair{f.v.norm, block}}) {
    if (norm) check(cudaMemset2D(g_pool + end - 128, block, 0x3a, 128, blocks), "fill");  // 0x3a3a is 0.78
  }
  check(cudaDeviceSynchronize(), "fill");
}

void row(const std::string& name, const CacheFormat& f, int sequences, int length, bool steady,
         const char* only) {
  if (only && name.find(only) == std::string::npos) return;
  std::mt19937 random(1);
  const int64_t pages = int64_t{sequences} * ((length + 63) / 64), bytes = pages * page_bytes(f);
  std::vector<int32_t> end(sequences, length), order(kPool / page_bytes(f));
  std::vector<int64_t> starts;
  for (int b = 0; b < sequences; ++b) starts.push_back(int64_t{b} * ((length + 63) / 64));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const int rotations =
      static_cast<int>(std::clamp<int64_t>(static_cast<int64_t>(order.size()) / pages, 1, 64));
  const int32_t* tables = on_device(order);
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<size_t>(sequences) * f.kv_heads * f.group * f.dim);
  for (auto& x : q) x = normal(random);
  DecodeInputs in;
  in.q = on_device(q);
  in.q_type = FloatType::f32;
  in.scale = 1 / std::sqrt(static_cast<float>(f.dim));
  in.pages = g_pool;
  in.k_levels = levels(f, f.k);
  in.v_levels = levels(f, f.v);
  const DecodeBatch batch{sequences, nullptr, end.data(), starts.data()};
  const cuda::DecodePlan limits = cuda::decode_plan_limits(f, sequences, g_device);
  std::vector<uint8_t> memory(static_cast<size_t>(limits.bytes));
  cuda::DecodePlan plan;
  must(cuda::plan_decode(f, batch, g_device, false, memory.data(), limits.bytes, &plan));
  uint8_t* plan_memory = on_device(memory);
  void *workspace, *o;
  must(cuda::allocate(static_cast<size_t>(limits.workspace), &workspace));
  must(cuda::allocate(q.size() * 4, &o));
  const auto launch = [&](bool overlap) {
    return [&, overlap](int rotation, cudaStream_t stream) {
      DecodeInputs now = in;
      now.table = tables + rotation * pages;
      must(
          cuda::decode(f, now, plan, plan_memory, workspace, {o, FloatType::bf16, nullptr}, overlap, stream));
    };
  };
  const double expected = static_cast<double>(bytes) / 3e6 + 5;
  const Timing plain = time_launches(launch(false), rotations, expected, steady);
  const Timing overlapped = time_launches(launch(true), rotations, expected, false);
  const size_t pieces = static_cast<size_t>(bytes / 16);
  const Timing ceiling = time_launches(
      [&](int r, cudaStream_t s) {
        read_only<<<g_device.multiprocessors * 4, 512, 0, s>>>(
            reinterpret_cast<const uint4*>(g_pool) + r * pieces, pieces, reinterpret_cast<unsigned*>(o));
      },
      rotations, expected, false);
  std::printf(
      "%-36s %7.1f us %7.1f steady %7.1f overlapped | read-only %6.1f | %4.1f %% | %d blocks, %d parts\n",
      name.c_str(), plain.burst, plain.steady, overlapped.burst, ceiling.burst,
      100 * ceiling.burst / plain.burst, plan.blocks, plan.partials);
  std::fflush(stdout);
  for (const void* p :
       {static_cast<const void*>(tables), in.q, static_cast<const void*>(in.k_levels.steps),
        static_cast<const void*>(in.k_levels.bits), static_cast<const void*>(in.v_levels.steps),
        static_cast<const void*>(in.v_levels.bits), static_cast<const void*>(plan_memory),
        static_cast<const void*>(workspace), static_cast<const void*>(o)}) {
    cudaFree(const_cast<void*>(p));
  }
}

int run(const char* only) {
  must(cuda::device_info(0, &g_device));
  void* pool;
  must(cuda::allocate(kPool + (64 << 20), &pool));
  g_pool = static_cast<uint8_t*>(pool);
  std::printf("%s, compute capability %d.%d, %d multiprocessors\n", g_device.name, g_device.major,
              g_device.minor, g_device.multiprocessors);
  const auto side = [](bool norm, int a, int b, int c, int d) {
    return SideFormat{CodeKind::planes, 1, norm, {a, b, c, d}};
  };
  const auto shapes = [&](const std::string& name, int dim, int group, const SideFormat& s, bool all) {
    const CacheFormat f{CacheLayout::native, dim, 8, group, s, s};
    fill(f);
    row("32x32k " + name, f, 32, 32768, all, only);
    if (!all) return;
    row("8x32k " + name, f, 8, 32768, false, only);
    row("32x8k " + name, f, 32, 8192, false, only);
    row("1x128k " + name, f, 1, 131072, false, only);
  };
  shapes("2 bits, 128 80 32 16", 128, 4, side(false, 128, 80, 32, 16), true);
  shapes("2 bits, norm", 128, 4, side(true, 128, 80, 32, 16), true);
  shapes("1.5 bits, 104 56 24 8", 128, 4, side(false, 104, 56, 24, 8), false);
  shapes("3 bits, 128 112 96 48", 128, 4, side(false, 128, 112, 96, 48), false);
  shapes("2 bits, 8 heads", 128, 8, side(false, 128, 80, 32, 16), false);
  shapes("2 bits, D 64, 8 heads", 64, 8, side(false, 64, 40, 16, 8), false);
  return 0;
}

}  // namespace
}  // namespace oscar::bench

int main(int argc, char** argv) {
  return oscar::bench::run(argc > 1 ? argv[1] : nullptr);
}
