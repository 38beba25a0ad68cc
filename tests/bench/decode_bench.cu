// Decode over INT2 codes on a GPU, with the plan that the library makes; see docs/performance.md.
//
//   bench_decode [part of a row's name]
//   bench_decode plans                     the first rows with other numbers of blocks
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "kernels/decode.h"
#include "kernels/decode_plan.h"
#include "kernels/device.h"
#include "kernels/half.h"
#include "tests/bench/device_timing.h"

namespace oscar::bench {
namespace {

constexpr size_t kPool = size_t{1} << 30;  // of pages: launches rotate through it, so that no cache helps

struct Work {
  CacheFormat format;
  std::vector<int32_t> end, exact;
  std::vector<int64_t> table_start, exact_start;
  std::vector<int32_t*> tables;  // device, one a rotation
  cuda::DecodePlan plan;
  DecodeInputs in;
  void *plan_memory = nullptr, *workspace = nullptr, *q = nullptr, *o = nullptr;
  size_t bytes = 0;  // of codes that a launch reads
  ~Work() {
    for (int32_t* t : tables) cudaFree(t);
    for (void* p : {plan_memory, workspace, q, o}) cudaFree(p);
  }
  void launch(int rotation, cudaStream_t stream, bool overlap) {
    DecodeInputs now = in;
    now.table = tables[rotation];
    must(cuda::decode(format, now, plan, plan_memory, workspace, {o, FloatType::bf16, nullptr}, overlap,
                      stream));
  }
};

uint8_t* g_pool;
uint16_t* g_exact;
cuda::DeviceInfo g_device;
std::string g_only;

void prepare(Work& w, const CacheFormat& f, std::vector<int32_t> lengths, int exact, int blocks) {
  w.format = f;
  w.end = lengths;
  std::mt19937 random(1);
  const bool native = f.layout == CacheLayout::native;
  int64_t units = 0, exact_units = 0;
  for (int length : lengths) {
    w.table_start.push_back(units);
    w.exact_start.push_back(exact_units);
    w.exact.push_back(exact);
    units += native ? (length + 63) / 64 : length;
    exact_units += exact;
  }
  const size_t unit_bytes = native ? page_bytes(f) : f.kv_heads * (f.dim / 2 + 16);
  w.bytes = units * unit_bytes;
  const size_t all = kPool / unit_bytes;
  const int rotations = static_cast<int>(std::clamp<size_t>(all / units, 1, 64));
  std::vector<int32_t> order(all);
  std::iota(order.begin(), order.end(), 0);
  if (native) std::shuffle(order.begin(), order.end(), random);
  for (int r = 0; r < rotations; ++r) {
    w.tables.push_back(
        on_device(std::vector<int32_t>(order.begin() + r * units, order.begin() + (r + 1) * units)));
  }
  std::normal_distribution<float> normal;
  std::vector<uint16_t> q(lengths.size() * f.kv_heads * f.group * f.dim);
  for (auto& x : q) x = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
  w.q = on_device(q);
  std::vector<int32_t> slots(std::max<int64_t>(exact_units, 1));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  must(cuda::allocate(q.size() * 2, &w.o));
  w.in.q = w.q;
  w.in.scale = 1 / std::sqrt(static_cast<float>(f.dim));
  w.in.pages = g_pool;
  const size_t slots_in_pool = all;
  w.in.k_codes = g_pool;
  w.in.v_codes = g_pool + slots_in_pool * f.kv_heads * f.dim / 4;
  w.in.k_scale_zero = g_pool + slots_in_pool * f.kv_heads * f.dim / 2;
  w.in.v_scale_zero = g_pool + slots_in_pool * f.kv_heads * (f.dim / 2 + 8);
  w.in.exact_slots = on_device(slots);
  w.in.exact_k = g_exact;
  w.in.exact_v = g_exact + exact_units * f.kv_heads * f.dim;
  const DecodeBatch batch{static_cast<int>(lengths.size()),
                          nullptr,
                          w.end.data(),
                          w.table_start.data(),
                          exact ? w.exact.data() : nullptr,
                          w.exact_start.data()};
  const cuda::DecodePlan limits = cuda::decode_plan_limits(f, batch.sequences, g_device);
  std::vector<uint8_t> memory(limits.bytes);
  must(plan_with(plan_costs(f), f, batch, g_device.multiprocessors, blocks, false, memory.data(),
                 limits.bytes, &w.plan));
  w.plan_memory = on_device(memory);
  must(cuda::allocate(limits.workspace, &w.workspace));
}

void rest() {  // a card at its power limit would make the next row slower
  check(cudaDeviceSynchronize(), "rest");
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
}

void row(const char* name, const CacheFormat& f, const std::vector<int32_t>& lengths, int exact, bool steady,
         int blocks = 0) {
  if (std::string(name).find(g_only) == std::string::npos) return;
  Work w;
  prepare(w, f, lengths, exact, blocks);
  const double expected = w.bytes / 4e6 + 5;
  const int rotations = static_cast<int>(w.tables.size());
  const Timing plain =
      time_launches([&](int r, cudaStream_t s) { w.launch(r, s, false); }, rotations, expected, steady);
  const Timing overlapped =
      time_launches([&](int r, cudaStream_t s) { w.launch(r, s, true); }, rotations, expected, false);
  const size_t pieces = w.bytes / 16;
  const Timing ceiling = time_launches(
      [&](int r, cudaStream_t s) {
        read_only<<<g_device.multiprocessors * 4, 512, 0, s>>>(
            reinterpret_cast<const uint4*>(g_pool) + r * pieces, pieces, reinterpret_cast<unsigned*>(g_pool));
      },
      rotations, expected, false);
  std::printf(
      "%-22s %8.1f us %8.1f steady %8.1f overlapped | read-only %7.1f | %5.1f %% | %6.0f GB/s | %d blocks, "
      "%d parts\n",
      name, plain.burst, plain.steady, overlapped.burst, ceiling.burst, 100 * ceiling.burst / plain.burst,
      w.bytes / plain.burst / 1e3, w.plan.blocks, w.plan.partials);
  std::fflush(stdout);
  if (steady) rest();
}

std::vector<int32_t> ragged(uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform;
  std::vector<int32_t> lengths;
  for (int i = 0; i < 32; ++i)
    lengths.push_back(static_cast<int32_t>(1024 * std::pow(64.0, uniform(random))));
  return lengths;
}

int run(bool plans) {
  must(cuda::device_info(0, &g_device));
  void *pool, *exact;
  must(cuda::allocate(kPool + (64 << 20), &pool));
  must(cuda::allocate(256 << 20, &exact));
  g_pool = static_cast<uint8_t*>(pool);
  g_exact = static_cast<uint16_t*>(exact);
  const CacheFormat qwen{CacheLayout::native, 128, 8, 4}, gptoss{CacheLayout::native, 64, 8, 8},
      engine{CacheLayout::sglang, 128, 8, 4};
  const auto fill = [&](const CacheFormat& f) {
    const int block = static_cast<int>(page_bytes(f) / f.kv_heads / 32);  // a side: codes, then metadata
    fill_random<<<1024, 256>>>(reinterpret_cast<uint4*>(g_pool), kPool / 16, 7, block, f.dim);
    fill_random<<<1024, 256>>>(reinterpret_cast<uint4*>(g_exact), (256 << 20) / 16, 9, 1, 0);
    check(cudaDeviceSynchronize(), "fill");
  };
  const auto same = [](int count, int length) { return std::vector<int32_t>(count, length); };
  std::printf("%s, compute capability %d.%d, %d multiprocessors\n", g_device.name, g_device.major,
              g_device.minor, g_device.multiprocessors);
  fill(qwen);
  if (plans) {
    for (const int blocks : {66, 132, 198, 264}) {
      const std::string at = ", " + std::to_string(blocks) + " blocks";
      row(("1x32k" + at).c_str(), qwen, same(1, 32768), 0, false, blocks);
      row(("1x128k" + at).c_str(), qwen, same(1, 131072), 0, false, blocks);
      row(("8x32k" + at).c_str(), qwen, same(8, 32768), 0, false, blocks);
      row(("32x8k" + at).c_str(), qwen, same(32, 8192), 0, false, blocks);
      row(("32x32k" + at).c_str(), qwen, same(32, 32768), 0, false, blocks);
    }
    return 0;
  }
  row("32x32k", qwen, same(32, 32768), 0, true);
  row("8x32k", qwen, same(8, 32768), 0, false);
  row("32x8k", qwen, same(32, 8192), 0, false);
  row("1x128k", qwen, same(1, 131072), 0, false);
  row("1x32k", qwen, same(1, 32768), 0, false);
  row("ragged 1", qwen, ragged(1), 0, false);
  row("ragged 2", qwen, ragged(2), 0, false);
  row("32x32k windows", qwen, same(32, 32768 - 320), 320, false);
  {
    const size_t slots = kPool / (engine.kv_heads * (engine.dim / 2 + 16)),
                 codes = slots * engine.kv_heads * engine.dim / 2;
    fill_random<<<1024, 256>>>(reinterpret_cast<uint4*>(g_pool + codes), slots * engine.kv_heads, 5, 1, 0);
    check(cudaDeviceSynchronize(), "fill");
  }
  row("32x32k sglang", engine, same(32, 32768), 0, true);
  row("8x32k sglang", engine, same(8, 32768), 0, false);
  row("1x32k sglang", engine, same(1, 32768), 0, false);
  fill(gptoss);
  row("32x32k gpt-oss", gptoss, same(32, 32768), 0, false);
  row("8x32k gpt-oss", gptoss, same(8, 32768), 0, false);
  row("1x32k gpt-oss", gptoss, same(1, 32768), 0, false);
  return 0;
}

}  // namespace
}  // namespace oscar::bench

int main(int argc, char** argv) {
  const bool plans = argc > 1 && std::strcmp(argv[1], "plans") == 0;
  if (argc > 1 && !plans) oscar::bench::g_only = argv[1];
  return oscar::bench::run(plans);
}
