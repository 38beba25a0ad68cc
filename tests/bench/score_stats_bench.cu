// Score statistics of a layer: 32 query heads, 8 KV heads, 8192 tokens, head dim 128, bfloat16.
#include <random>

#include "kernels/score_stats_device.h"
#include "tests/bench/device_timing.h"

using namespace oscar;

int main() {
  constexpr int64_t kTokens = 8192;
  constexpr int kHeads = 8, kGroup = 4, kDim = 128, kRotations = 4;
  cuda::ScoreStatsBatch in;
  in.tokens = kTokens;
  in.kv_heads = kHeads;
  in.group = kGroup;
  in.dim = kDim;
  in.scale = 0.088388f;
  in.sink = 64;
  in.recent = 256;
  in.q_stride = kHeads * kGroup * kDim;
  in.k_stride = kHeads * kDim;
  in.lse_stride = kTokens;
  const auto device = [](size_t bytes) {
    void* memory;
    bench::check(cudaMalloc(&memory, bytes), "memory");
    return memory;
  };
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  // bfloat16 by cutting: random data is all that is asked for.
  std::vector<uint16_t> values(kTokens * in.q_stride);
  for (auto& v : values) {
    const float x = normal(random);
    v = static_cast<uint16_t>(*reinterpret_cast<const uint32_t*>(&x) >> 16);
  }
  const std::vector<float> lse(kHeads * kGroup * kTokens, 9.0f);
  std::vector<cuda::ScoreStatsBatch> batches;
  for (int i = 0; i < kRotations; ++i) {
    void *q = device(values.size() * 2), *k = device(kTokens * in.k_stride * 2), *l = device(lse.size() * 4);
    cudaMemcpy(q, values.data(), values.size() * 2, cudaMemcpyHostToDevice);
    cudaMemcpy(k, values.data() + 12345 * 8, kTokens * in.k_stride * 2, cudaMemcpyHostToDevice);
    cudaMemcpy(l, lse.data(), lse.size() * 4, cudaMemcpyHostToDevice);
    in.q = q;
    in.k = k;
    in.lse = static_cast<const float*>(l);
    batches.push_back(in);
  }
  const size_t rows = kHeads * kGroup * kTokens;
  auto* mass = static_cast<float*>(device(rows * 4));
  auto* sink = static_cast<float*>(device(rows * 4));
  auto* entropy = static_cast<float*>(device(rows * 4));
  auto* u = static_cast<double*>(device(kHeads * kTokens * 8));
  auto* w = static_cast<double*>(device(kHeads * kTokens * 8));
  void* workspace = device(cuda::score_stats_workspace(in));
  const auto launch = [&](int i, cudaStream_t stream) {
    const Status status = cuda::score_stats(batches[i], {mass, sink, entropy, u, w}, workspace, stream);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.what);
  };
  const auto timing = bench::time_launches(launch, kRotations, 1000, true);
  const double products = double(kTokens) * kTokens / 2 * kHeads * kGroup * kDim * 2;
  std::printf("score statistics 32/8 heads, T 8192, D 128: burst %.1f us, steady %.1f us, %.0f TFLOP/s\n",
              timing.burst, timing.steady, products / timing.burst / 1e6);
}
