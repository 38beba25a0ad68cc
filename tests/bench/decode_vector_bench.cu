// Decode over vector codes on a GPU, with the plan that the library makes; see docs/performance.md.
//
//   bench_decode_vector [part of a row's name]
//   bench_decode_vector --pages FILE...     codes of real rows, of bench_fitted_pages, beside random ones
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "kernels/decode.h"
#include "kernels/device.h"
#include "kernels/vector_pages.h"
#include "tests/bench/device_timing.h"
#include "tests/bench/fitted_pages.h"

namespace oscar::bench {
namespace {

constexpr size_t kPool = size_t{1} << 30;  // of pages: launches rotate through it, so that no cache helps
cuda::DeviceInfo g_device;
uint8_t* g_pool;

CodebookView book(const CacheFormat& f, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<int8_t> words(static_cast<size_t>(f.kv_heads * kVectorWords * f.dim));
  for (auto& w : words) w = static_cast<int8_t>(std::fmax(-127.f, std::fmin(127.f, 40 * normal(random))));
  std::vector<float> scales(static_cast<size_t>(f.kv_heads * f.dim / 4));
  for (auto& s : scales) s = 0.02f * std::exp(0.4f * normal(random));
  return {on_device(words), on_device(scales)};
}

// Random codes; where sides have norms, halves in their places.
void fill(const CacheFormat& f) {
  const int key = static_cast<int>(side_bytes(f, f.k) / 16),
            block = key + static_cast<int>(side_bytes(f, f.v) / 16);
  fill_random<<<1024, 256>>>(reinterpret_cast<uint4*>(g_pool), kPool / 16, 7, 0, 0);
  if (f.k.norm || f.v.norm) {
    std::vector<uint8_t> page(static_cast<size_t>(16 * block));
    const size_t blocks = kPool / page.size();
    const auto scale_column = [&](int at) {
      check(cudaMemset2D(g_pool + at, page.size(), 0x3a, 128, blocks), "fill");  // 0x3a3a is 0.78
    };
    if (f.k.norm) scale_column(16 * key - 128);
    if (f.v.norm) scale_column(16 * block - 128);
  }
  check(cudaDeviceSynchronize(), "fill");
}

struct Books {
  CodebookView k, v;
};

void row(const std::string& name, const CacheFormat& f, int sequences, int length, bool steady,
         const char* only, const Books* books = nullptr) {
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
  in.k_book = books ? books->k : book(f, random);
  in.v_book = books ? books->v : book(f, random);
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
      "%-24s %7.1f us %7.1f steady %7.1f overlapped | read-only %6.1f | %4.1f %% | %d blocks, %d parts\n",
      name.c_str(), plain.burst, plain.steady, overlapped.burst, ceiling.burst,
      100 * ceiling.burst / plain.burst, plan.blocks, plan.partials);
  std::fflush(stdout);
  for (const void* p : {static_cast<const void*>(tables), in.q, static_cast<const void*>(plan_memory),
                        static_cast<const void*>(workspace), static_cast<const void*>(o)}) {
    cudaFree(const_cast<void*>(p));
  }
  if (books) return;
  for (const CodebookView& b : {in.k_book, in.v_book}) {
    cudaFree(const_cast<int8_t*>(b.words));
    cudaFree(const_cast<float*>(b.scales));
  }
}

void begin() {
  must(cuda::device_info(0, &g_device));
  void* pool;
  must(cuda::allocate(kPool + (64 << 20), &pool));
  g_pool = static_cast<uint8_t*>(pool);
  std::printf("%s, compute capability %d.%d, %d multiprocessors\n", g_device.name, g_device.major,
              g_device.minor, g_device.multiprocessors);
}

// The pages again and again through the pool; then random ones of the same format.
int run_fitted(const char* path) {
  const FittedPages fitted = read_fitted_pages(path);
  const CacheFormat f = fitted.format(4);
  const std::string name = std::to_string(fitted.size) + "x8, D " + std::to_string(fitted.dim);
  const Books books{{on_device(fitted.words[0]), on_device(fitted.scales[0])},
                    {on_device(fitted.words[1]), on_device(fitted.scales[1])}};
  for (size_t at = 0; at + fitted.bytes.size() <= kPool; at += fitted.bytes.size()) {
    check(cudaMemcpy(g_pool + at, fitted.bytes.data(), fitted.bytes.size(), cudaMemcpyHostToDevice), "pages");
  }
  for (const bool random : {false, true}) {
    if (random) fill(f);
    const std::string of = name + (random ? ", random" : ", fitted");
    row("32x32k " + of, f, 32, 32768, false, nullptr, random ? nullptr : &books);
    row("1x128k " + of, f, 1, 131072, false, nullptr, random ? nullptr : &books);
  }
  return 0;
}

int run(const char* only) {
  using enum CodeKind;
  const auto shapes = [&](const std::string& name, const CacheFormat& f, bool all) {
    fill(f);
    row("32x32k " + name, f, 32, 32768, all, only);
    if (!all) return;
    row("8x32k " + name, f, 8, 32768, false, only);
    row("32x8k " + name, f, 32, 8192, false, only);
    row("1x128k " + name, f, 1, 131072, false, only);
  };
  const auto format = [](int dim, int group, SideFormat k, SideFormat v) {
    return CacheFormat{CacheLayout::native, dim, 8, group, k, v};
  };
  shapes("4x8", format(128, 4, {vector4x8}, {vector4x8}), true);
  shapes("4x8 norm", format(128, 4, {vector4x8, 1, true}, {vector4x8}), true);
  shapes("8x8", format(128, 4, {vector8x8}, {vector8x8}), true);
  shapes("8x8 norm", format(128, 4, {vector8x8, 1, true}, {vector8x8}), true);
  shapes("4x8 / 8x8", format(128, 4, {vector4x8}, {vector8x8}), false);
  shapes("8x8 / 4x8", format(128, 4, {vector8x8}, {vector4x8}), false);
  shapes("4x8 norm / int2", format(128, 4, {vector4x8, 1, true}, {int2}), false);
  shapes("int2 / 4x8", format(128, 4, {int2}, {vector4x8}), false);
  shapes("4x8, 8 heads", format(128, 8, {vector4x8}, {vector4x8}), false);
  shapes("4x8, D 64, 8 heads", format(64, 8, {vector4x8}, {vector4x8}), false);
  return 0;
}

}  // namespace
}  // namespace oscar::bench

int main(int argc, char** argv) {
  oscar::bench::begin();
  if (argc < 3 || std::strcmp(argv[1], "--pages") != 0)
    return oscar::bench::run(argc > 1 ? argv[1] : nullptr);
  for (int i = 2; i < argc; ++i) oscar::bench::run_fitted(argv[i]);
}
