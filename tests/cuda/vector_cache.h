// A random cache whose sides are vector codes or INT2 of one group: as coded_cache.h, with codebooks.
#pragma once
#include "kernels/vector_pages.h"
#include "tests/cuda/coded_cache.h"

namespace oscar {

struct VectorCache : CodedCache {
  std::vector<int8_t> k_words, v_words;
  std::vector<float> k_word_scales, v_word_scales;

  DecodeInputs inputs() const {
    DecodeInputs in = CodedCache::inputs();
    in.k_book = {k_words.data(), k_word_scales.data()};
    in.v_book = {v_words.data(), v_word_scales.data()};
    return in;
  }
};

class VectorCacheMaker {
 public:
  VectorCacheMaker(const CacheFormat& format, uint32_t seed)
      : format_(format), plain_(with_int2(format), seed), random_(seed + 1) {}
  VectorCacheMaker& sequence(int first, int end, int exact = 0) {
    plain_.sequence(first, end, exact);
    return *this;
  }
  VectorCache make(bool extras) {
    VectorCache cache{plain_.make(extras), {}, {}, {}, {}};
    cache.format = format_;
    for (const bool keys : {true, false}) {
      const SideFormat& side = keys ? format_.k : format_.v;
      if (side.kind == CodeKind::int2) continue;
      auto& words = keys ? cache.k_words : cache.v_words;
      auto& scales = keys ? cache.k_word_scales : cache.v_word_scales;
      words.resize(static_cast<size_t>(format_.kv_heads * kVectorWords * format_.dim));
      for (auto& w : words) w = static_cast<int8_t>(std::clamp(normal_(random_) * 40.f, -127.f, 127.f));
      scales.resize(static_cast<size_t>(format_.kv_heads * format_.dim / vector_size(side.kind)));
      for (auto& s : scales) s = 0.018f * std::exp(0.4f * normal_(random_));
    }
    fill_native_pages(cache, [&](bool keys, int64_t b, int head, int token, uint8_t* block) {
      write(cache, keys, b, head, token, block);
    });
    return cache;
  }

 private:
  // Token first + 5 is a sink: the words that the first query head likes best, some e^13 above the rest.
  void write(const VectorCache& cache, bool keys, int64_t b, int head, int token, uint8_t* block) {
    const SideFormat& side = keys ? format_.k : format_.v;
    const int dim = format_.dim;
    if (side.kind == CodeKind::int2) {
      std::vector<float> row(static_cast<size_t>(dim));
      for (float& x : row) x = 0.8f * normal_(random_);
      std::vector<uint8_t> codes(static_cast<size_t>(dim / 4));
      float scale_zero[2];
      int2::encode_reference({dim, 1}, row.data(), 1, codes.data(), scale_zero);
      int2::pack_native(keys, dim, 1, codes.data(), scale_zero, token % 64, 1, block);
      return;
    }
    const int size = vector_size(side.kind), groups = dim / size;
    std::vector<uint8_t> codes(static_cast<size_t>(groups));
    for (auto& c : codes) c = static_cast<uint8_t>(random_());
    if (keys && token == cache.first[b] + 5) {
      const uint16_t* q = cache.q.data() + (b * format_.kv_heads + head) * format_.group * dim;
      for (int g = 0; g < groups; ++g) {
        float best = -1e30f;
        for (int c = 0; c < kVectorWords; ++c) {
          float dot = 0;
          for (int i = 0; i < size; ++i) {
            dot += bf16_to_float(q[g * size + i]) *
                   static_cast<float>(cache.k_words[(head * kVectorWords + c) * dim + g * size + i]);
          }
          if (dot > best) best = dot, codes[g] = static_cast<uint8_t>(c);
        }
      }
    }
    const float scale = 0.6f + 0.3f * std::abs(normal_(random_));
    pack_vector(keys, dim, size, codes.data(), side.norm ? &scale : nullptr, token % 64, 1, block);
  }

  CacheFormat format_;
  CacheMaker plain_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

}  // namespace oscar
