// Score statistics of a layer: 32 query heads, 8 KV heads, head dim 128, bfloat16, without and with values.
#include <random>

#include "kernels/score_stats_device.h"
#include "tests/bench/device_timing.h"

using namespace oscar;

namespace {

constexpr int kHeads = 8, kGroup = 4, kDim = 128, kRotations = 4;

// bfloat16 by cutting: random data is all that is asked for.
std::vector<uint16_t> random_rows(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(count);
  for (auto& v : rows) {
    const float x = normal(random);
    v = static_cast<uint16_t>(*reinterpret_cast<const uint32_t*>(&x) >> 16);
  }
  return rows;
}

void time_layer(int64_t tokens, bool values, const std::vector<uint16_t>& rows) {
  cuda::ScoreStatsBatch in;
  in.tokens = tokens;
  in.kv_heads = kHeads;
  in.group = kGroup;
  in.dim = kDim;
  in.scale = 0.088388f;
  in.sink = 64;
  in.recent = 256;
  in.q_stride = in.o_stride = kHeads * kGroup * kDim;
  in.k_stride = in.v_stride = kHeads * kDim;
  in.lse_stride = tokens;
  std::vector<void*> memory;
  const auto device = [&](size_t bytes) {
    void* p;
    bench::check(cudaMalloc(&p, bytes), "memory");
    memory.push_back(p);
    return p;
  };
  const auto copy = [&](const void* from, size_t bytes) {
    void* p = device(bytes);
    bench::check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "upload");
    return p;
  };
  const size_t count = kHeads * kGroup * tokens;
  const std::vector<float> lse(count, 9.0f);
  std::vector<cuda::ScoreStatsBatch> batches;
  for (int i = 0; i < kRotations; ++i) {
    in.q = copy(rows.data() + 8 * i, count * kDim * 2);
    in.k = copy(rows.data() + 12345 * 8 * i, tokens * in.k_stride * 2);
    in.lse = static_cast<const float*>(copy(lse.data(), lse.size() * 4));
    if (values) {
      std::vector<float> metric(kHeads * kGroup * kDim * kDim);
      for (size_t n = 0; n < metric.size(); n += kDim + 1) metric[n] = 1;
      in.v = copy(rows.data() + 2345 * 8 * i, tokens * in.v_stride * 2);
      in.o = copy(rows.data() + 80 * i, count * kDim * 2);
      in.metric = static_cast<const float*>(copy(metric.data(), metric.size() * 4));
      in.dim_v = kDim;
    }
    batches.push_back(in);
  }
  cuda::ScoreStatsOutputs out;
  for (float** sums : {&out.mass, &out.sink_mass, &out.entropy, &out.a})
    *sums = static_cast<float*>(device(count * 4));
  for (double** sums : {&out.u, &out.w, &out.x}) *sums = static_cast<double*>(device(kHeads * tokens * 8));
  void* workspace = device(cuda::score_stats_workspace(in));
  const auto launch = [&](int i, cudaStream_t stream) {
    bench::must(cuda::score_stats(batches[i], out, workspace, stream));
  };
  const auto timing = bench::time_launches(launch, kRotations, tokens > 4096 ? 700 : 50, true);
  const double products = double(tokens) * tokens / 2 * kHeads * kGroup * kDim * 2 * (values ? 2 : 1);
  std::printf("score statistics 32/8 heads, T %lld, D 128%s: burst %.1f us, steady %.1f us, %.0f TFLOP/s\n",
              static_cast<long long>(tokens), values ? ", with values" : "", timing.burst, timing.steady,
              products / timing.burst / 1e6);
  for (void* p : memory) cudaFree(p);
}

}  // namespace

int main(int argc, char** argv) {  // [tokens], at most 8192
  const std::vector<int64_t> lengths =
      argc > 1 ? std::vector<int64_t>{std::atoll(argv[1])} : std::vector<int64_t>{2048, 8192};
  const auto rows = random_rows(8192 * kHeads * kGroup * kDim + 1024, 1);
  for (const bool values : {false, true}) {
    for (const int64_t tokens : lengths) time_layer(tokens, values, rows);
  }
}
