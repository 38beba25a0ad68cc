// Decode over coded caches on this CPU, beside scaled_dot_product_attention of LibTorch on exact rows of the
// same shape where the build has it, and beside the scalar truth. Everything in turns, so that a busy machine
// is equally bad to all; medians.
//
//   bench_cpu_decode [tokens] [rounds]     OMP_NUM_THREADS, OSCAR_CPU
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/decode.h"
#include "kernels/half.h"
#include "tests/bench/torch_attention.h"

using namespace oscar;

namespace {

// A sequence in permuted pages of random bytes, with scales and minima near 0.1.
struct Cache {
  CacheFormat format;
  std::vector<uint8_t> pages;
  std::vector<int32_t> table;
  std::vector<uint16_t> q;
  std::vector<int8_t> words;
  std::vector<float> scales, o;
  std::vector<uint8_t> bits;
  int32_t end;
  int64_t start = 0;

  Cache(const CacheFormat& f, int32_t tokens) : format(f), end(tokens) {
    std::mt19937_64 random(1);
    const int32_t count = (tokens + 63) / 64;
    pages.resize(count * page_bytes(f));
    for (uint8_t& x : pages) x = static_cast<uint8_t>(random());
    for (int32_t p = 0; p < count; ++p) table.push_back(p);
    std::shuffle(table.begin(), table.end(), random);
    const auto number = [&](float low, float high) {
      return std::uniform_real_distribution<float>(low, high)(random);
    };
    for (int64_t block = 0; block < int64_t{count} * f.kv_heads; ++block) {
      uint8_t* at = pages.data() + block * (side_bytes(f, f.k) + side_bytes(f, f.v));
      for (const SideFormat& side : {f.k, f.v}) {
        auto* halves = reinterpret_cast<uint16_t*>(at + 16 * f.dim);
        for (int i = 0; side.kind == CodeKind::int2 && i < 128 * side.groups; i += 2) {
          halves[i] = float_to_half(number(0.5f, 1));
          halves[i + 1] = float_to_half(number(-1.5f, -0.5f));
        }
        at += side_bytes(f, side);
      }
    }
    for (int i = 0; i < f.kv_heads * f.group * f.dim; ++i)
      q.push_back(static_cast<uint16_t>(random() & 0xbfff) & 0xbf9f);
    words.resize(int64_t{f.kv_heads} * 256 * f.dim);
    for (int8_t& x : words) x = static_cast<int8_t>(random());
    scales.assign(f.kv_heads * f.dim, 0.01f);
    for (int i = 0; i < f.kv_heads * f.dim; ++i) {
      const auto has = [&](int channels) { return i % f.dim < channels; };
      bits.push_back(static_cast<uint8_t>(std::count_if(f.k.planes, f.k.planes + 4, has)));
    }
    o.resize(q.size());
  }
  DecodeInputs inputs() const {
    DecodeInputs in;
    in.q = q.data();
    in.scale = 0.05f;
    in.table = table.data();
    in.pages = pages.data();
    in.k_book = in.v_book = {words.data(), scales.data()};
    in.k_levels = in.v_levels = {scales.data(), bits.data()};
    return in;
  }
  DecodeBatch batch() const { return {1, nullptr, &end, &start, nullptr, nullptr}; }
};

struct Contender {
  std::string name;
  std::function<void()> run;
  int repeats = 1;
  std::vector<double> ms = {};
  double median() {
    std::ranges::sort(ms);
    return ms[ms.size() / 2];
  }
};

void shape(const char* name, int kv_heads, int group, int dim, int32_t tokens, int rounds) {
  std::printf("%s: %d query heads, %d KV heads, D = %d, %d tokens\n", name, kv_heads * group, kv_heads, dim,
              tokens);
  const SideFormat planes{CodeKind::planes, 1, false, {dim, dim * 5 / 64 * 8, dim / 4, dim / 64 * 8}};
  const SideFormat sides[] = {{}, {CodeKind::vector4x8}, {CodeKind::vector8x8}, planes};
  constexpr const char* names[] = {"int2", "vectors 4x8", "vectors 8x8", "bit planes, 2 bits"};
  std::vector<Cache> caches;
  for (const SideFormat& side : sides)
    caches.emplace_back(CacheFormat{CacheLayout::native, dim, kv_heads, group, side, side}, tokens);
  std::vector<Contender> contenders;
  for (size_t i = 0; i < caches.size(); ++i) {
    Cache& c = caches[i];
    contenders.push_back(
        {names[i],
         [&c] {
           const Status s = decode(c.format, c.batch(), c.inputs(), {c.o.data(), FloatType::f32, nullptr});
           if (!s.ok()) std::printf("%s\n", s.what);
         },
         5});
  }
  std::vector<std::unique_ptr<test::TorchAttention>> torch;
  for (const bool bf16 : {false, true}) {
    for (const bool stacked : {false, true}) {
      if (!test::TorchAttention::present()) continue;
      torch.push_back(std::make_unique<test::TorchAttention>(kv_heads, group, dim, tokens, bf16, stacked));
      contenders.push_back(
          {std::string("LibTorch ") + (bf16 ? "bfloat16" : "float32") + (stacked ? ", stacked" : ""),
           [at = torch.back().get()] { at->run(); }, 5});
    }
  }
  std::vector<double> o(caches[0].o.size());
  for (Cache& c : caches) {
    contenders.push_back({"scalar truth, " + std::string(names[&c - caches.data()]),
                          [&] {
                            const Status s =
                                decode_reference(c.format, c.batch(), c.inputs(), o.data(), nullptr);
                            if (!s.ok()) std::printf("%s\n", s.what);
                          },
                          0});
  }
  for (Contender& c : contenders) c.run();
  for (int round = 0; round < rounds; ++round) {
    for (Contender& c : contenders) {
      if (c.repeats == 0 && round > 2) continue;
      for (int i = 0; i < std::max(1, c.repeats); ++i) {
        const auto start = std::chrono::steady_clock::now();
        c.run();
        c.ms.push_back(1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
    }
  }
  for (Contender& c : contenders) {
    const double median = c.median();
    std::printf("  %-26s %9.3f ms   fastest %9.3f\n", c.name.c_str(), median, c.ms.front());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int32_t tokens = argc > 1 ? std::max(1, std::atoi(argv[1])) : 8192;
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 41;
  std::printf("level %s\n", std::string(cpu_level()).c_str());
  shape("SmolLM2-135M", 3, 3, 64, tokens, rounds);
  shape("Qwen3-8B", 8, 4, 128, tokens, rounds);
}
