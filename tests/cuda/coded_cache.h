// A random cache of INT2 codes for a batch, on the host: pages in a random order, and NaN in whatever must
// not be read.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/decode.h"
#include "kernels/half.h"
#include "kernels/int2.h"

namespace oscar {

inline uint16_t bf16_bits(float x) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0x8000u) >> 16);
}

struct CodedCache {
  CacheFormat format;
  std::vector<int32_t> first, end, exact, table, exact_slots;
  std::vector<int64_t> table_start, exact_start;
  std::vector<uint8_t> pages, k_codes, v_codes;
  std::vector<uint8_t> k_scale_zero, v_scale_zero;
  std::vector<uint16_t> q, exact_k, exact_v;
  std::vector<float> sink_logits, k_mean, v_mean;

  DecodeBatch batch() const {
    return {static_cast<int>(end.size()), first.data(), end.data(),
            table_start.data(),           exact.data(), exact_start.data()};
  }
  int64_t queries() const { return static_cast<int64_t>(end.size()) * format.kv_heads * format.group; }
  DecodeInputs inputs() const {
    DecodeInputs in;
    in.q = q.data();
    in.scale = 1 / std::sqrt(static_cast<float>(format.dim));
    in.table = table.data();
    in.pages = pages.data();
    in.k_codes = k_codes.data();
    in.v_codes = v_codes.data();
    in.k_scale_zero = k_scale_zero.data();
    in.v_scale_zero = v_scale_zero.data();
    in.exact_slots = exact_slots.data();
    in.exact_k = exact_k.data();
    in.exact_v = exact_v.data();
    return in;
  }
};

// Fills native pages, whose bytes are 0xff before: write(keys, sequence, KV head, token, block of its side), token by token,
// head by head, keys before values.
template <class Write>
void fill_native_pages(CodedCache& cache, Write&& write) {
  const CacheFormat& f = cache.format;
  const int64_t page = page_bytes(f), k_bytes = side_bytes(f, f.k), block = k_bytes + side_bytes(f, f.v);
  cache.pages.assign(cache.table.size() * static_cast<size_t>(page), 0xff);
  for (size_t b = 0; b < cache.end.size(); ++b) {
    for (int t = cache.first[b]; t < cache.end[b]; ++t) {
      for (int h = 0; h < f.kv_heads; ++h) {
        uint8_t* at = cache.pages.data() + cache.table[cache.table_start[b] + t / 64] * page + h * block;
        write(true, static_cast<int64_t>(b), h, t, at);
        write(false, static_cast<int64_t>(b), h, t, at + k_bytes);
      }
    }
  }
}
// The format whose queries, tables and exact rows a cache of other codes has.
inline CacheFormat with_int2(CacheFormat format) {
  format.k = format.v = {};
  return format;
}

class CacheMaker {
 public:
  CacheMaker(const CacheFormat& format, uint32_t seed) : random_(seed) { cache_.format = format; }

  // A sequence of coded tokens [first, end) and `exact` exact ones.
  CacheMaker& sequence(int first, int end, int exact = 0) {
    cache_.first.push_back(first);
    cache_.end.push_back(end);
    cache_.exact.push_back(exact);
    return *this;
  }
  CodedCache make(bool extras) {
    const CacheFormat& f = cache_.format;
    int64_t units = 0, exact = 0;
    for (size_t b = 0; b < cache_.end.size(); ++b) {
      cache_.table_start.push_back(units);
      cache_.exact_start.push_back(exact);
      units += f.layout == CacheLayout::native ? (cache_.end[b] + 63) / 64 : cache_.end[b];
      exact += cache_.exact[b];
    }
    cache_.table.resize(static_cast<size_t>(units) + 64);  // a few that nobody may use
    std::iota(cache_.table.begin(), cache_.table.end(), 0);
    std::shuffle(cache_.table.begin(), cache_.table.end(), random_);
    cache_.exact_slots.resize(static_cast<size_t>(exact) + 4);
    std::iota(cache_.exact_slots.begin(), cache_.exact_slots.end(), 0);
    std::shuffle(cache_.exact_slots.begin(), cache_.exact_slots.end(), random_);
    for (int64_t i = 0; i < cache_.queries() * f.dim; ++i)
      cache_.q.push_back(bf16_bits(normal_(random_) * 1.5f));
    const size_t exact_elements = cache_.exact_slots.size() * f.kv_heads * f.dim;
    cache_.exact_k.assign(exact_elements, 0x7fff);
    cache_.exact_v.assign(exact_elements, 0x7fff);
    for (int64_t i = 0; i < exact; ++i) {
      for (int64_t j = 0; j < f.kv_heads * f.dim; ++j) {
        cache_.exact_k[cache_.exact_slots[i] * f.kv_heads * f.dim + j] = bf16_bits(normal_(random_));
        cache_.exact_v[cache_.exact_slots[i] * f.kv_heads * f.dim + j] = bf16_bits(normal_(random_));
      }
    }
    f.layout == CacheLayout::native ? fill_pages() : fill_rows();
    if (extras) {
      for (int i = 0; i < f.kv_heads * f.group; ++i) cache_.sink_logits.push_back(normal_(random_) + 2);
      for (int i = 0; i < f.kv_heads * f.dim; ++i) cache_.k_mean.push_back(normal_(random_) * 0.3f);
      for (int i = 0; i < f.kv_heads * f.dim; ++i) cache_.v_mean.push_back(normal_(random_));
    }
    return std::move(cache_);
  }

 private:
  // One row's codes and (scale, zero); token `sink` outweighs the others by e^13 for the first query head.
  void row(int64_t b, int head, bool keys, bool sink, std::vector<uint8_t>& codes,
           std::vector<float>& scale_zero) {
    const CacheFormat& f = cache_.format;
    const int groups = keys ? f.k.groups : f.v.groups, quarter = f.dim / 4;
    for (auto& byte : codes) byte = static_cast<uint8_t>(random_());
    for (int g = 0; g < groups; ++g) {
      const float scale = std::exp(normal_(random_) * 0.5f) * 0.5f;
      scale_zero[2 * g] = scale;
      scale_zero[2 * g + 1] = 1.5f + normal_(random_) * 0.5f;
    }
    if (!keys || !sink) return;
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    double sum = 0;
    for (int i = 0; i < f.dim; ++i) {
      const float q = bf16_to_float(cache_.q[(b * f.kv_heads + head) * f.group * f.dim + i]);
      if (q > 0) {
        sum += 3 * q;
        codes[i % quarter] |= static_cast<uint8_t>(3 << (2 * (i / quarter)));
      }
    }
    for (int g = 0; g < groups; ++g) {
      scale_zero[2 * g] = static_cast<float>(20 * std::sqrt(f.dim) / sum);
      scale_zero[2 * g + 1] = 0;
    }
  }
  void fill_pages() {
    const CacheFormat& f = cache_.format;
    std::vector<uint8_t> codes(f.dim / 4);
    fill_native_pages(cache_, [&](bool keys, int64_t b, int head, int token, uint8_t* block) {
      const int groups = keys ? f.k.groups : f.v.groups;
      std::vector<float> scale_zero(2 * groups);
      row(b, head, keys, token == cache_.first[b] + 5, codes, scale_zero);
      int2::pack_native(keys, f.dim, groups, codes.data(), scale_zero.data(), token % 64, 1, block);
    });
  }
  void fill_rows() {
    const CacheFormat& f = cache_.format;
    const int groups = f.k.groups, size = f.scale_zero == FloatType::f32 ? 4 : 2;
    const size_t rows = cache_.table.size() * f.kv_heads;
    cache_.k_codes.assign(rows * f.dim / 4, 0xff);
    cache_.v_codes = cache_.k_codes;
    cache_.k_scale_zero.assign(rows * 2 * groups * size, 0xff);
    cache_.v_scale_zero = cache_.k_scale_zero;
    std::vector<uint8_t> codes(f.dim / 4);
    std::vector<float> scale_zero(2 * groups);
    for (size_t b = 0; b < cache_.end.size(); ++b) {
      for (int t = cache_.first[b]; t < cache_.end[b]; ++t) {
        for (int h = 0; h < f.kv_heads; ++h) {
          const int64_t at = int64_t{cache_.table[cache_.table_start[b] + t]} * f.kv_heads + h;
          for (const bool keys : {true, false}) {
            row(static_cast<int64_t>(b), h, keys, t == cache_.first[b] + 5, codes, scale_zero);
            std::copy(codes.begin(), codes.end(),
                      (keys ? cache_.k_codes : cache_.v_codes).begin() + at * (f.dim / 4));
            uint8_t* to = (keys ? cache_.k_scale_zero : cache_.v_scale_zero).data() + at * 2 * groups * size;
            for (int i = 0; i < 2 * groups; ++i) {
              const uint32_t bits =
                  size == 4 ? std::bit_cast<uint32_t>(scale_zero[i]) : bf16_bits(scale_zero[i]);
              std::memcpy(to + i * size, &bits, size);
            }
          }
        }
      }
    }
  }

  CodedCache cache_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

}  // namespace oscar
