// What a dump on a GPU does beside matrix products and attention: second moments of a layer, exact sums, row
// operations. 32 query heads, 8 KV heads, 2048 tokens, head dim 128, hidden 4096, MLP 12288.
#include <bit>
#include <random>

#include "kernels/exact_sums_device.h"
#include "kernels/forward_device.h"
#include "kernels/gram_device.h"
#include "tests/bench/device_timing.h"

using namespace oscar;

namespace {

constexpr int64_t kTokens = 2048;
constexpr int kQueryHeads = 32, kHeads = 8, kDim = 128, kHidden = 4096, kMlp = 12288, kRotations = 4;

// bfloat16 by cutting: random data is all that is asked for.
void* rows(size_t count) {
  static std::mt19937 random(1);
  static std::vector<uint16_t> pool;
  std::normal_distribution<float> normal;
  while (pool.size() < 1 << 20) {
    const float x = normal(random);
    pool.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
  }
  std::vector<uint16_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = pool[(i + random() % 2) % pool.size()];
  return bench::on_device(values);
}
template <class T>
T* numbers(size_t count, T low, T high) {
  static std::mt19937 random(2);
  std::uniform_real_distribution<T> uniform(low, high);
  std::vector<T> values(count);
  for (T& x : values) x = uniform(random);
  return bench::on_device(values);
}
template <class T>
T* room(size_t count) {
  return bench::on_device(std::vector<T>(count));
}

template <class Launch>
void print(const char* what, double bytes, Launch&& launch) {
  const auto timing = bench::time_launches(
      [&](int i, cudaStream_t stream) { bench::must(launch(i, stream)); }, kRotations, 50, false);
  std::printf("%-46s %7.1f us", what, timing.burst);
  if (bytes > 0) std::printf("  %5.2f TB/s", bytes / timing.burst / 1e6);
  std::printf("\n");
}

// Rows of the heads of one side, with `weights` weightings besides all one.
std::vector<cuda::GramBatch> moments_of(int heads, int group, int weights) {
  std::vector<cuda::GramBatch> batches;
  for (int i = 0; i < kRotations; ++i) {
    cuda::GramBatch b;
    b.n = kTokens;
    b.heads = heads;
    b.group = group;
    b.dim = kDim;
    b.stride = int64_t{heads} * group * kDim;
    b.rows = rows(kTokens * b.stride);
    b.weightings = 1 + weights;
    for (int w = 0; w < b.weightings; ++w) {
      if (w > 0) b.weights[w] = numbers<float>(kTokens * heads * group, 0.0f, 1.0f);
      b.gram[w] = room<double>(static_cast<size_t>(heads) * kDim * kDim);
      b.sum[w] = room<double>(static_cast<size_t>(heads) * kDim);
      b.total[w] = room<double>(heads);
    }
    batches.push_back(b);
  }
  return batches;
}

void moments() {
  const int group = kQueryHeads / kHeads;
  const std::vector<cuda::GramBatch> sides[] = {moments_of(kHeads, group, 2), moments_of(kHeads, group, 0),
                                                moments_of(kHeads, 1, 2), moments_of(kHeads, 1, 1)};
  const char* const names[] = {"moments of q: one, mass, a", "moments of o: one", "moments of k: one, u, x",
                               "moments of v: one, w"};
  int64_t bytes = 0;
  for (const auto& side : sides) bytes = std::max(bytes, cuda::gram_workspace(side[0]));
  void* workspace = room<uint8_t>(bytes);
  print("moments of a layer: q, o, k, v", 0, [&](int i, cudaStream_t stream) {
    for (const auto& side : sides) {
      if (const Status s = cuda::gram(side[i], workspace, stream); !s.ok()) return s;
    }
    return Status{};
  });
  for (int s = 0; s < 4; ++s)
    print(names[s], 0,
          [&](int i, cudaStream_t stream) { return cuda::gram(sides[s][i], workspace, stream); });
}

void exact_sums() {
  constexpr int64_t n = 1300000;
  double *planes[kRotations], *values[kRotations];
  for (int i = 0; i < kRotations; ++i) {
    planes[i] = room<double>(3 * n);
    values[i] = numbers<double>(n, -1.0, 1.0);
  }
  int32_t* flags = room<int32_t>(2);
  print("exact sums, 1.3 million, 3 planes", 0, [&](int i, cudaStream_t stream) {
    return cuda::add_exactly(planes[i], 3, n, values[i], flags, 0, stream);
  });
}

void row_operations() {
  const int width = (kQueryHeads + 2 * kHeads) * kDim;
  const double T = kTokens;
  float *hidden[kRotations], *powers = room<float>(kTokens), *weight = numbers<float>(kHidden, 0.5f, 1.5f);
  void *update[kRotations], *qkv[kRotations], *gates[kRotations], *out[kRotations];
  for (int i = 0; i < kRotations; ++i) {
    hidden[i] = numbers<float>(kTokens * kHidden, -1.0f, 1.0f);
    update[i] = rows(kTokens * kHidden);
    qkv[i] = rows(kTokens * width);
    gates[i] = rows(kTokens * 2 * kMlp);
    out[i] = room<uint16_t>(kTokens * kMlp);
  }
  float *cos = numbers<float>(kTokens * kDim / 2, -1.0f, 1.0f),
        *sin = numbers<float>(kTokens * kDim / 2, -1.0f, 1.0f), *norm = numbers<float>(kDim, 0.5f, 1.5f);
  print("rms_norm", T * kHidden * 6, [&](int i, cudaStream_t stream) {
    return cuda::rms_norm(hidden[i], weight, 1e-5, kTokens, kHidden, out[i], powers, stream);
  });
  print("add_and_norm", T * kHidden * 12, [&](int i, cudaStream_t stream) {
    return cuda::add_and_norm(hidden[i], update[i], 0.5f, weight, 1e-5, kTokens, kHidden, out[i], powers,
                              stream);
  });
  const auto turn = [&](const float* norm_weight, bool neighbours) {
    return [=, &qkv, &out](int i, cudaStream_t stream) {
      cuda::RotaryRows jobs[3];
      auto* to = static_cast<uint16_t*>(out[i]);
      int64_t column = 0;
      for (int j = 0; j < 3; ++j) {
        cuda::RotaryRows& job = jobs[j];
        job.in = qkv[i];
        job.in_stride = width;
        job.column = column;
        job.heads = j == 0 ? kQueryHeads : kHeads;
        job.dim = kDim;
        job.rows = kTokens;
        job.out = to + kTokens * column;
        column += int64_t{job.heads} * kDim;
        if (j == 2) continue;
        job.norm = norm_weight;
        job.eps = 1e-5;
        job.cos = cos;
        job.sin = sin;
        job.rotary_dim = kDim;
        job.neighbours = neighbours;
      }
      return cuda::rotary(jobs, 3, stream);
    };
  };
  print("rotary: q, k, v", T * width * 4, turn(nullptr, false));
  print("rotary: q, k, v, with norms of heads", T * width * 4, turn(norm, false));
  print("rotary: q, k, v, neighbours", T * width * 4, turn(nullptr, true));
  print("swiglu", T * kMlp * 6,
        [&](int i, cudaStream_t stream) { return cuda::swiglu(gates[i], kTokens, kMlp, out[i], stream); });
}

}  // namespace

int main() {
  moments();
  exact_sums();
  row_operations();
}
