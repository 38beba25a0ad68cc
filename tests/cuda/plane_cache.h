// A random cache of bit planes: as coded_cache.h, with steps and bits of every channel.
#pragma once
#include "kernels/plane_pages.h"
#include "tests/cuda/coded_cache.h"

namespace oscar {

struct PlaneCache : CodedCache {
  std::vector<float> k_steps, v_steps;
  std::vector<uint8_t> k_bits, v_bits;

  DecodeInputs inputs() const {
    DecodeInputs in = CodedCache::inputs();
    in.k_levels = {k_steps.data(), k_bits.data()};
    in.v_levels = {v_steps.data(), v_bits.data()};
    return in;
  }
};

class PlaneCacheMaker {
 public:
  PlaneCacheMaker(const CacheFormat& format, uint32_t seed)
      : format_(format), plain_(with_int2(format), seed), random_(seed + 1) {}
  PlaneCacheMaker& sequence(int first, int end, int exact = 0) {
    plain_.sequence(first, end, exact);
    return *this;
  }
  PlaneCache make(bool extras) {
    PlaneCache cache{plain_.make(extras), {}, {}, {}, {}};
    cache.format = format_;
    for (const bool keys : {true, false}) make_levels(cache, keys);
    fill_native_pages(cache, [&](bool keys, int64_t b, int head, int token, uint8_t* block) {
      write(cache, keys, b, head, token, block);
    });
    return cache;
  }

 private:
  // Every second head has fewer channels in each plane than there is room for. Steps as water-filling leaves
  // them: alike, so that channels of more bits are larger.
  void make_levels(PlaneCache& cache, bool keys) {
    const SideFormat& side = keys ? format_.k : format_.v;
    double power = 0;
    for (int c = 0; c < format_.dim; ++c) {
      const int bits =
          static_cast<int>(std::count_if(side.planes, side.planes + 4, [&](int n) { return c < n; }));
      power += (std::pow(4.0, bits) - 1) / 12;
    }
    const double step = std::sqrt(format_.dim / power);
    for (int i = 0; i < format_.kv_heads * format_.dim; ++i) {
      const int channel = i % format_.dim, fewer = i / format_.dim % 2 * 5;
      const auto has = [&](int n) { return channel < n - fewer; };
      (keys ? cache.k_bits : cache.v_bits)
          .push_back(static_cast<uint8_t>(std::count_if(side.planes, side.planes + 4, has)));
      (keys ? cache.k_steps : cache.v_steps)
          .push_back(static_cast<float>(step) * std::exp(0.2f * normal_(random_)));
    }
  }
  // Token first + 5 is a sink: the codes that the first query head likes best, and a norm that makes its logit
  // some 13.
  void write(const PlaneCache& cache, bool keys, int64_t b, int head, int token, uint8_t* block) {
    const SideFormat& side = keys ? format_.k : format_.v;
    const auto& bits = keys ? cache.k_bits : cache.v_bits;
    std::vector<uint8_t> codes(static_cast<size_t>(format_.dim));
    float norm = std::exp(0.3f * normal_(random_));
    const uint16_t* q = cache.q.data() + (b * format_.kv_heads + head) * format_.group * format_.dim;
    double logit = 0;
    for (int c = 0; c < format_.dim; ++c) {
      const int most = (1 << bits[head * format_.dim + c]) - 1;
      codes[c] = static_cast<uint8_t>(random_() & static_cast<unsigned>(most));
      if (!keys || token != cache.first[b] + 5) continue;
      const float x = bf16_to_float(q[c]);
      codes[c] = static_cast<uint8_t>(x > 0 ? most : 0);
      logit += std::abs(x) * 0.5 * most * cache.k_steps[head * format_.dim + c];
    }
    if (logit > 0) norm = static_cast<float>(13 * std::sqrt(format_.dim) / logit);
    pack_planes(keys, side, format_.dim, codes.data(), side.norm ? &norm : nullptr, token % 64, 1, block);
  }

  CacheFormat format_;
  CacheMaker plain_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

}  // namespace oscar
