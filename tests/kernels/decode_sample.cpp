#include "tests/kernels/decode_sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/half.h"
#include "kernels/int2.h"
#include "kernels/plane_pages.h"
#include "kernels/vector_pages.h"

namespace oscar::test {
namespace {

constexpr int kPage = int2::kPageTokens;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<uint16_t> bf16(const std::vector<float>& x) {
  std::vector<uint16_t> bits(x.size());
  std::ranges::transform(x, bits.begin(),
                         [](float v) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16); });
  return bits;
}

// `count` different numbers below `size`, in any order.
std::vector<int32_t> places(int64_t count, int64_t size, std::mt19937_64& random) {
  std::vector<int32_t> all(size);
  std::iota(all.begin(), all.end(), 0);
  std::ranges::shuffle(all, random);
  all.resize(count);
  return all;
}

}  // namespace

DecodeSample::DecodeSample(const DecodeShape& shape, uint64_t seed) : format(shape.format) {
  const CacheFormat& f = format;
  const size_t sequences = shape.ends.size();
  lay_out(shape, seed);
  q_bf16_ = bf16(normal(sequences * f.kv_heads * f.group * f.dim, seed + 1));
  for (const uint16_t x : q_bf16_) q_.push_back(bf16_to_float(x));
  inputs.q = q_bf16_.data();
  inputs.scale = shape.logits / std::sqrt(static_cast<float>(f.dim));
  inputs.softcap = shape.softcap;
  for (const bool keys : {true, false}) fill(keys, shape, seed + (keys ? 10 : 20));
  if (shape.sinks) {
    sinks_ = normal(f.kv_heads * f.group, seed + 2, 3);
    sinks_[0] = -std::numeric_limits<float>::infinity();
    inputs.sink_logits = sinks_.data();
  }
  if (shape.means) {
    for (const bool keys : {true, false}) means_[keys] = normal(f.kv_heads * f.dim, seed + 3 + keys);
    inputs.k_mean = means_[1].data();
    inputs.v_mean = means_[0].data();
  }
}

void DecodeSample::lay_out(const DecodeShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  ends_ = shape.ends;
  firsts_ = shape.firsts;
  exact_ = shape.exact;
  const bool native = format.layout == CacheLayout::native;
  int64_t exact = 0;
  for (size_t b = 0; b < ends_.size(); ++b) {
    table_start_.push_back(slots_);
    slots_ += native ? (ends_[b] + kPage - 1) / kPage : ends_[b];
    exact_start_.push_back(exact);
    exact += exact_.empty() ? 0 : exact_[b];
  }
  table_ = places(slots_, slots_ + 3, random);
  slots_ += 3;
  for (size_t b = 0; b < firsts_.size(); ++b) {
    const int32_t hidden = native ? firsts_[b] / kPage : firsts_[b];
    std::fill_n(table_.begin() + table_start_[b], hidden, 1 << 30);  // nobody may follow it
  }
  exact_slots_ = places(exact, exact + 2, random);
  batch = {static_cast<int>(ends_.size()),
           firsts_.empty() ? nullptr : firsts_.data(),
           ends_.data(),
           table_start_.data(),
           exact_.empty() ? nullptr : exact_.data(),
           exact_start_.data()};
  inputs.table = table_.data();
  inputs.exact_slots = exact_slots_.data();
  if (native) pages_.assign(slots_ * page_bytes(format), 0xff);  // a float16 of ones is a NaN
  inputs.pages = pages_.data();
}

const uint8_t* DecodeSample::page(int sequence, int32_t index) const {
  return pages_.data() + table_[table_start_[sequence] + index] * page_bytes(format);
}

// (end, dim) of one sequence and KV head.
std::vector<float> DecodeSample::rows(bool keys, const DecodeShape& shape, int b, int head,
                                      uint64_t seed) const {
  auto x = normal(int64_t{ends_[b]} * format.dim, seed);
  if (!keys || shape.spike < 0 || shape.spike >= ends_[b]) return x;
  const float* q = q_.data() + (int64_t{b} * format.kv_heads + head) * format.group * format.dim;
  float length = 0;
  for (int i = 0; i < format.dim; ++i) length += std::abs(q[i]);
  for (int i = 0; i < format.dim; ++i) {
    x[int64_t{shape.spike} * format.dim + i] = std::copysign(shape.to_logit / (inputs.scale * length), q[i]);
  }
  return x;
}

std::vector<uint8_t> DecodeSample::vector_codes(bool keys, const DecodeShape& shape, int b, int head,
                                                uint64_t seed) const {
  const int dim = format.dim, size = vector_size(keys ? format.k.kind : format.v.kind), groups = dim / size;
  std::mt19937_64 random(seed);
  std::vector<uint8_t> codes(int64_t{ends_[b]} * groups);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
  if (!keys || shape.spike < 0 || shape.spike >= ends_[b]) return codes;
  const float* q = q_.data() + (int64_t{b} * format.kv_heads + head) * format.group * dim;
  for (int group = 0; group < groups; ++group) {
    float best = -1e30f;
    for (int code = 0; code < 256; ++code) {
      float dot = 0;
      for (int i = group * size; i < (group + 1) * size; ++i)
        dot += q[i] * words_[1][(head * 256 + code) * dim + i];
      if (dot > best) {
        best = dot;
        codes[shape.spike * groups + group] = static_cast<uint8_t>(code);
      }
    }
  }
  return codes;
}

// Every second head has fewer channels in each plane than there is room for.
void DecodeSample::make_levels(bool keys) {
  const SideFormat& side = keys ? format.k : format.v;
  for (int i = 0; i < format.kv_heads * format.dim; ++i) {
    const int channel = i % format.dim, fewer = i / format.dim % 2 * 5;
    int bits = 0;
    while (bits < kPlanes && channel < side.planes[bits] - fewer) ++bits;
    bits_[keys].push_back(static_cast<uint8_t>(bits));
    steps_[keys].push_back((2 + static_cast<float>(channel % 5) / 2) / static_cast<float>(1 << bits));
  }
  (keys ? inputs.k_levels : inputs.v_levels) = {steps_[keys].data(), bits_[keys].data()};
}

std::vector<uint8_t> DecodeSample::plane_codes(bool keys, const DecodeShape& shape, int b, int head,
                                               uint64_t seed) const {
  const int dim = format.dim;
  const float* q = q_.data() + (int64_t{b} * format.kv_heads + head) * format.group * dim;
  std::mt19937_64 random(seed);
  std::vector<uint8_t> codes(int64_t{ends_[b]} * dim);
  for (int64_t i = 0; i < std::ssize(codes); ++i) {
    const int channel = static_cast<int>(i % dim), most = (1 << bits_[keys][head * dim + channel]) - 1;
    codes[i] = static_cast<uint8_t>(random() & most);
    if (keys && i / dim == shape.spike) codes[i] = static_cast<uint8_t>(q[channel] > 0 ? most : 0);
  }
  return codes;
}

void DecodeSample::fill(bool keys, const DecodeShape& shape, uint64_t seed) {
  const CacheFormat& f = format;
  const SideFormat& side = keys ? f.k : f.v;
  const int dim = f.dim, size = vector_size(side.kind);
  exact_rows_[keys] = bf16(normal((exact_slots_.size() + 2) * f.kv_heads * dim, seed));
  std::vector<bool> used(exact_slots_.size() + 2);
  for (const int32_t slot : exact_slots_) used[slot] = true;
  for (size_t slot = 0; slot < used.size(); ++slot) {
    if (!used[slot])
      std::fill_n(exact_rows_[keys].begin() + slot * f.kv_heads * dim, f.kv_heads * dim, 0xffff);
  }
  if (side.kind == CodeKind::planes) {
    make_levels(keys);
  } else if (side.kind != CodeKind::int2) {
    std::mt19937_64 random(seed + 1);
    words_[keys].resize(int64_t{f.kv_heads} * 256 * dim);
    for (int8_t& x : words_[keys]) x = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
    for (int i = 0; i < f.kv_heads * dim / size; ++i)
      book_scales_[keys].push_back((1 + static_cast<float>(i % 5)) / 250);
  }
  if (f.layout == CacheLayout::sglang) {
    codes_[keys].assign(slots_ * f.kv_heads * dim / 4, 0xff);
    scale_zero_[keys].assign(slots_ * f.kv_heads * 2 * side.groups, kNaN);
  }
  for (int b = 0; b < batch.sequences; ++b) {
    const int32_t end = ends_[b], first = firsts_.empty() ? 0 : firsts_[b];
    for (int head = 0; head < f.kv_heads; ++head) {
      const uint64_t own = seed + 100 + 1000 * b + head;
      std::vector<uint8_t> codes(int64_t{end} * dim / 4);
      std::vector<float> scale_zero(int64_t{end} * 2 * side.groups), norms(end);
      if (side.kind == CodeKind::int2) {
        const auto x = rows(keys, shape, b, head, own);
        int2::encode_reference({.dim = dim, .groups = side.groups}, x.data(), end, codes.data(),
                               scale_zero.data());
      } else {
        codes = side.kind == CodeKind::planes ? plane_codes(keys, shape, b, head, own)
                                              : vector_codes(keys, shape, b, head, own);
        norms = normal(end, own + 1, 0.3f);
        for (float& x : norms) x = std::abs(x);
      }
      for (int32_t t = first; t < end; ++t) {
        const int64_t entry = table_[table_start_[b] + (pages_.empty() ? t : t / kPage)];
        if (pages_.empty()) {
          const int64_t at = entry * f.kv_heads + head;
          std::copy_n(codes.begin() + int64_t{t} * dim / 4, dim / 4, codes_[keys].begin() + at * dim / 4);
          std::copy_n(scale_zero.begin() + int64_t{t} * 2 * side.groups, 2 * side.groups,
                      scale_zero_[keys].begin() + at * 2 * side.groups);
          continue;
        }
        uint8_t* block = pages_.data() + entry * page_bytes(f) +
                         head * (side_bytes(f, f.k) + side_bytes(f, f.v)) + (keys ? 0 : side_bytes(f, f.k));
        if (side.kind == CodeKind::int2) {
          int2::pack_native(keys, dim, side.groups, codes.data() + int64_t{t} * dim / 4,
                            scale_zero.data() + int64_t{t} * 2 * side.groups, t % kPage, 1, block);
        } else if (side.kind == CodeKind::planes) {
          pack_planes(keys, side, dim, codes.data() + int64_t{t} * dim, side.norm ? &norms[t] : nullptr,
                      t % kPage, 1, block);
        } else {
          pack_vector(keys, dim, size, codes.data() + int64_t{t} * dim / size,
                      side.norm ? &norms[t] : nullptr, t % kPage, 1, block);
        }
      }
    }
  }
  half_scale_zero_[keys] = bf16(scale_zero_[keys]);
  const void* scales = scale_zero_[keys].data();
  if (f.scale_zero == FloatType::bf16) scales = half_scale_zero_[keys].data();
  (keys ? inputs.k_scale_zero : inputs.v_scale_zero) = scales;
  (keys ? inputs.k_codes : inputs.v_codes) = codes_[keys].data();
  (keys ? inputs.exact_k : inputs.exact_v) = exact_rows_[keys].data();
  (keys ? inputs.k_book : inputs.v_book) = {words_[keys].data(), book_scales_[keys].data()};
}

}  // namespace oscar::test
