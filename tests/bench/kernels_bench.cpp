// Time and GFLOP/s per CPU second of the kernels; best of several runs. Set OMP_NUM_THREADS=1 for the rate of
// one core.
//
//   bench_kernels [repeats]        OSCAR_CPU=generic|avx2|avx512 chooses the level
//
// FLOP are those of the products alone, over the visible pairs: exp, sums and masks count as nothing.
// add_gram counts the whole D x D matrix although half of it is computed.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cached_attention.h"
#include "kernels/codebook.h"
#include "kernels/cpu.h"
#include "kernels/diagnose.h"
#include "kernels/gram.h"
#include "kernels/quadratic_gram.h"
#include "kernels/int2.h"
#include "kernels/score_stats.h"

using namespace oscar;

namespace {

int repeats = 5;

struct Seconds {
  double wall = 1e30, cpu = 1e30;
};
template <typename Run>
Seconds best(Run run) {
  Seconds best;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu = std::clock();
    run();
    best.cpu = std::min(best.cpu, static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC);
    best.wall =
        std::min(best.wall, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

std::vector<float> normal(size_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(engine);
  return values;
}

void print(const char* kernel, Seconds seconds, double factor, double amount, const char* unit) {
  std::printf("  %-27s %9.3f ms wall %9.3f ms CPU  %8.2f %s\n", kernel, 1e3 * factor * seconds.wall,
              1e3 * factor * seconds.cpu, amount / seconds.cpu, unit);
}

struct Codes {
  int dim;
  std::vector<uint8_t> codes;
  std::vector<float> scale_zero;
  Codes(const std::vector<float>& rows, int d, double clip)
      : dim(d), codes(rows.size() / 4), scale_zero(rows.size() / d * 2) {
    int2::encode({.dim = dim, .clip = clip}, rows.data(), static_cast<int64_t>(rows.size()) / dim,
                 codes.data(), scale_zero.data());
  }
  CodeRows rows() const {
    return {[](const void* self, int64_t first, int64_t count, float* out) {
              const auto& c = *static_cast<const Codes*>(self);
              int2::decode(c.dim, 1, c.codes.data() + first * c.dim / 4, c.scale_zero.data() + first * 2,
                           count, out);
            },
            this};
  }
};

void shape(const char* name, int64_t tokens, int group, int kv_heads, int dim) {
  std::printf("%s: T=%lld H=%d Hkv=%d D=%d\n", name, static_cast<long long>(tokens), group, kv_heads, dim);
  const auto q = normal(tokens * group * dim, 1), k = normal(tokens * dim, 2), v = normal(tokens * dim, 3);
  const std::vector<float> lse(group * tokens, 8.0f);
  std::vector<float> mass(group * tokens), sink(mass.size()), entropy(mass.size());
  std::vector<double> u(tokens), w(tokens);
  const double pairs = 0.5 * tokens * (tokens + 1) * group;
  const float scale = 1 / std::sqrt(static_cast<float>(dim));

  std::vector<float> o(q.size()), lse_out(lse.size());
  const AttentionProblem attention{tokens,
                                   group,
                                   dim,
                                   dim,
                                   scale,
                                   0,
                                   q.data(),
                                   int64_t{group} * dim,
                                   k.data(),
                                   dim,
                                   v.data(),
                                   dim,
                                   int64_t{group} * dim,
                                   tokens};
  Seconds seconds = best([&] { causal_attention(attention, o.data(), lse_out.data()); });
  print("causal_attention, all heads", seconds, kv_heads, 1e-9 * pairs * 4 * dim, "GFLOP/s");

  const ScoreStatsProblem stats{
      tokens,   group, dim,        scale,  64,      256,   0, q.data(), int64_t{group} * dim,
      k.data(), dim,   lse.data(), tokens, nullptr, tokens};
  seconds = best([&] { score_stats(stats, {mass.data(), sink.data(), entropy.data(), u.data(), w.data()}); });
  print("score_stats, all KV heads", seconds, kv_heads, 1e-9 * pairs * 2 * dim, "GFLOP/s");

  const auto metric = normal(group * dim * dim, 4);  // a symmetric one takes no longer
  std::vector<float> a(mass.size());
  std::vector<double> x(tokens);
  ScoreStatsProblem with_output = stats;
  with_output.v = v.data();
  with_output.v_stride = dim;
  with_output.o = o.data();
  with_output.o_stride = int64_t{group} * dim;
  with_output.metric = metric.data();
  with_output.dim_v = dim;
  seconds = best([&] {
    score_stats(with_output,
                {mass.data(), sink.data(), entropy.data(), u.data(), w.data(), a.data(), x.data()});
  });
  const double history = 0.5 * (tokens - 320) * (tokens - 319) * group;
  print("  with the attention output", seconds, kv_heads, 2e-9 * dim * (pairs + history), "GFLOP/s");

  const Codes k_codes(k, dim, .96), v_codes(v, dim, .92);
  const CachedAttentionProblem cached{attention, 64, 256, k_codes.rows(), v_codes.rows()};
  seconds = best([&] { cached_attention(cached, o.data(), lse_out.data()); });
  print("cached_attention, all heads", seconds, kv_heads, 1e-9 * pairs * 4 * dim, "GFLOP/s");

  const DiagnoseProblem problem{tokens,
                                0,
                                group,
                                dim,
                                dim,
                                scale,
                                64,
                                256,
                                0,
                                q.data(),
                                int64_t{group} * dim,
                                k.data(),
                                v.data(),
                                k_codes.rows(),
                                v_codes.rows()};
  std::vector<double> kl(group * tokens), error(kl.size()), power(kl.size());
  std::vector<uint8_t> top1(kl.size());
  std::vector<float> o_codes(o), o_keys(o), o_values(o);
  seconds = best([&] {
    diagnose(problem, {kl.data(), top1.data(), error.data(), power.data(), o.data(), o_codes.data(),
                       o_keys.data(), o_values.data()});
  });
  print("diagnose, all KV heads", seconds, kv_heads, 1e-9 * dim * 2 * (history * 6 + (pairs - history) * 3),
        "GFLOP/s");

  const int64_t rows = tokens * group;
  const std::vector<float> weights(rows, 0.5f);
  std::vector<double> gram(dim * dim), sum(dim);
  seconds = best([&] { add_gram(q.data(), dim, nullptr, rows, dim, gram.data()); });
  print("add_gram", seconds, 1, 2e-9 * rows * dim * dim, "GFLOP/s");
  seconds = best([&] { add_gram(q.data(), dim, weights.data(), rows, dim, gram.data()); });
  print("add_gram, weighted", seconds, 1, 2e-9 * rows * dim * dim, "GFLOP/s");
  const QuadraticGram second{rows, dim, dim, q.data(), dim, q.data(), dim, gram.data()};
  std::vector<double> of_values(dim * dim);
  double total = 0;
  seconds = best([&] { add_quadratic_gram(second, of_values.data(), &total); });
  print("add_quadratic_gram", seconds, 1, 4e-9 * rows * dim * dim, "GFLOP/s");

  std::vector<uint8_t> codes(rows * dim / 4);
  std::vector<float> scale_zero(rows * 2), back(rows * dim);
  seconds =
      best([&] { int2::encode({.dim = dim, .clip = .96}, q.data(), rows, codes.data(), scale_zero.data()); });
  print("int2::encode, clip", seconds, 1, 1e-6 * rows, "M rows/s");
  seconds = best([&] { int2::decode(dim, 1, codes.data(), scale_zero.data(), rows, back.data()); });
  print("int2::decode", seconds, 1, 1e-6 * rows, "M rows/s");
}

void search(int g, int count, int64_t n) {
  const auto rows = normal(n * g, 1), codebook = normal(count * g, 2);
  std::vector<uint16_t> index(n);
  std::vector<float> distance(n);
  char name[64];
  std::snprintf(name, sizeof name, "g=%d count=%d n=%lld", g, count, static_cast<long long>(n));
  const auto run = [&](float* d) {
    return best([&] { nearest_codeword(rows.data(), g, n, g, codebook.data(), count, index.data(), 1, d); });
  };
  print(name, run(nullptr), 1, 1e-6 * n, "M searches/s");
  print("  with distances", run(distance.data()), 1, 1e-6 * n, "M searches/s");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) repeats = std::max(1, std::atoi(argv[1]));
  std::printf("level %s\n", std::string(cpu_level()).c_str());
  shape("SmolLM2-135M", 2048, 3, 3, 64);
  shape("Qwen3-8B", 2048, 4, 8, 128);
  shape("SmolLM2-135M", 4096, 3, 3, 64);
  std::puts("nearest_codeword:");
  for (const int count : {16, 64, 256, 1024}) search(4, count, 100000);
  search(4, 256, 64);
  search(8, 256, 100000);
  search(16, 256, 100000);
  search(2, 16, 100000);
  search(1, 4, 100000);
}
