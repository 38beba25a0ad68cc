#include "kernels/write.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/codebook.h"
#include "kernels/half.h"
#include "kernels/int2.h"
#include "kernels/plane_pages.h"
#include "kernels/vector_pages.h"

namespace oscar {
namespace {

// To nearest, ties to even; a NaN becomes a quiet one.
uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Row `token`, `head` after rotation and mean.
void load_row(const CacheFormat& f, const WriteRule& rule, const WriteRows& in, int64_t token, int head,
              float* x) {
  const int64_t at = (token * f.kv_heads + head) * f.dim;
  if (in.type == FloatType::f32) {
    std::copy_n(static_cast<const float*>(in.rows) + at, f.dim, x);
  } else {
    std::transform(static_cast<const uint16_t*>(in.rows) + at,
                   static_cast<const uint16_t*>(in.rows) + at + f.dim, x, bf16_to_float);
  }
  if (in.rotation) {
    const uint16_t* matrix = in.rotation + (in.rotation_per_head ? int64_t{head} * f.dim * f.dim : 0);
    std::vector<double> sums(static_cast<size_t>(f.dim));
    for (int i = 0; i < f.dim; ++i) {
      for (int j = 0; j < f.dim; ++j) sums[j] += double(x[i]) * bf16_to_float(matrix[int64_t{i} * f.dim + j]);
    }
    std::ranges::transform(sums, x, [](double sum) { return static_cast<float>(sum); });
  }
  for (int i = 0; in.mean && i < f.dim; ++i) x[i] -= in.mean[int64_t{head} * f.dim + i];
  for (int i = 0; rule.round_bf16 && i < f.dim; ++i) x[i] = bf16_to_float(float_to_bf16(x[i]));
}

// Magnitudes are ordered as bit patterns, so a NaN is above infinity.
float sorted_threshold(const float* x, int dim, int index) {
  std::vector<uint32_t> bits(static_cast<size_t>(dim));
  std::transform(x, x + dim, bits.begin(),
                 [](float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; });
  std::ranges::nth_element(bits, bits.begin() + index);
  return std::bit_cast<float>(bits[static_cast<size_t>(index)]);
}
float bisected_threshold(const float* x, int dim, int index) {
  float low = 0, high = 0;
  for (int i = 0; i < dim; ++i) high = std::max(high, std::abs(x[i]));
  for (int step = std::bit_width(static_cast<unsigned>(dim)) - 1; step > 0; --step) {
    const float middle = (low + high) * 0.5f;
    const auto above = std::count_if(x, x + dim, [&](float value) { return std::abs(value) > middle; });
    (above > dim - index ? low : high) = middle;
  }
  return high;
}
void clip(const WriteRule& rule, int dim, float* x) {
  const int index = int2::clip_index(rule.clip, dim);
  if (index < 0) return;
  const float tau = rule.bisect ? bisected_threshold(x, dim, index) : sorted_threshold(x, dim, index);
  for (int i = 0; i < dim; ++i) x[i] = x[i] < -tau ? -tau : x[i] > tau ? tau : x[i];
}

// Sums in double: in what order a GPU adds is not fixed.
void encode_lloyd_max(const WriteRule& rule, int dim, const float* x, uint8_t* codes, float* scale_zero) {
  double sum = 0, squares = 0;
  for (int i = 0; i < dim; ++i) sum += x[i];
  const auto mean = static_cast<float>(sum / dim);
  for (int i = 0; i < dim; ++i) squares += double(x[i] - mean) * (x[i] - mean);
  const float sigma = std::sqrt(static_cast<float>(squares / dim) + 1e-8f);
  scale_zero[0] = rule.step * sigma;
  scale_zero[1] = 1.5f - mean / scale_zero[0];
  const int quarter = dim / 4;
  std::fill_n(codes, quarter, uint8_t{0});
  for (int i = 0; i < dim; ++i) {
    const float z = (x[i] - mean) / sigma;
    const int code = (z >= -rule.threshold) + (z >= 0) + (z >= rule.threshold);
    codes[i % quarter] |= static_cast<uint8_t>(code << (2 * (i / quarter)));
  }
}

uint8_t* native_block(const CacheFormat& f, const WriteTarget& target, int64_t slot, int head) {
  const int64_t k = side_bytes(f, f.k), v = side_bytes(f, f.v);
  return target.pages + slot / int2::kPageTokens * page_bytes(f) + head * (k + v) + (target.keys ? 0 : k);
}

void write_int2(const CacheFormat& f, const WriteRule& rule, const WriteTarget& target, int64_t slot,
                int head, float* x) {
  const int dim = f.dim, groups = (target.keys ? f.k : f.v).groups;
  std::vector<uint8_t> codes(static_cast<size_t>(dim / 4));
  std::vector<float> scale_zero(static_cast<size_t>(2 * groups));
  clip(rule, dim, x);
  if (rule.step > 0) {
    encode_lloyd_max(rule, dim, x, codes.data(), scale_zero.data());
  } else {
    int2::encode({.dim = dim, .groups = groups, .clip = 0, .round_bf16 = false}, x, 1, codes.data(),
                 scale_zero.data());
  }
  if (f.layout == CacheLayout::native) {
    int2::pack_native(target.keys, dim, groups, codes.data(), scale_zero.data(),
                      static_cast<int>(slot % int2::kPageTokens), 1, native_block(f, target, slot, head));
    return;
  }
  const int64_t row = slot * f.kv_heads + head;
  std::ranges::copy(codes, target.codes + row * (dim / 4));
  for (int i = 0; i < 2 * groups; ++i) {
    if (f.scale_zero == FloatType::bf16) {
      static_cast<uint16_t*>(target.scale_zero)[row * 2 * groups + i] = float_to_bf16(scale_zero[i]);
    } else {
      static_cast<float*>(target.scale_zero)[row * 2 * groups + i] = scale_zero[i];
    }
  }
}

// Each row is divided by its root mean square, in what float16 holds, as libcalib/codecs/vector.cpp does.
std::vector<float> divide_by_norms(int dim, std::vector<float>& x) {
  std::vector<float> norms(x.size() / dim);
  for (size_t r = 0; r < norms.size(); ++r) {
    double squares = 0;
    for (int i = 0; i < dim; ++i) squares += double(x[r * dim + i]) * x[r * dim + i];
    const double norm = std::clamp(std::sqrt(squares / dim), 0x1p-24, 65504.0);
    norms[r] = half_to_float(float_to_half(static_cast<float>(norm)));
    for (int i = 0; i < dim; ++i) x[r * dim + i] /= norms[r];
  }
  return norms;
}

// The rows of one KV head.
void write_vectors(const CacheFormat& f, const WriteTarget& target, const std::vector<float>& rows, int head,
                   const std::vector<int64_t>& slots) {
  const SideFormat& side = target.keys ? f.k : f.v;
  const int dim = f.dim, size = vector_size(side.kind), groups = dim / size;
  const auto n = static_cast<int64_t>(slots.size());
  std::vector<float> x = rows, norms, words(static_cast<size_t>(kVectorWords * size));
  if (side.norm) norms = divide_by_norms(dim, x);
  std::vector<uint16_t> index(slots.size());
  std::vector<uint8_t> codes(static_cast<size_t>(n * groups));
  for (int group = 0; group < groups; ++group) {
    for (int c = 0; c < kVectorWords; ++c) {
      for (int i = 0; i < size; ++i) {
        words[c * size + i] =
            static_cast<float>(
                target.book.words[(int64_t{head} * kVectorWords + c) * dim + group * size + i]) *
            target.book.scales[head * groups + group];
      }
    }
    nearest_codeword(x.data() + group * size, dim, n, size, words.data(), kVectorWords, index.data(), 1,
                     nullptr);
    for (int64_t r = 0; r < n; ++r) codes[r * groups + group] = static_cast<uint8_t>(index[r]);
  }
  for (int64_t r = 0; r < n; ++r) {
    pack_vector(target.keys, dim, size, codes.data() + r * groups, side.norm ? &norms[r] : nullptr,
                static_cast<int>(slots[r] % int2::kPageTokens), 1, native_block(f, target, slots[r], head));
  }
}

void write_planes(const CacheFormat& f, const WriteTarget& target, const std::vector<float>& rows, int head,
                  const std::vector<int64_t>& slots) {
  const SideFormat& side = target.keys ? f.k : f.v;
  const auto n = static_cast<int64_t>(slots.size());
  std::vector<float> x = rows, norms;
  if (side.norm) norms = divide_by_norms(f.dim, x);
  std::vector<uint16_t> index(slots.size());
  std::vector<uint8_t> codes(static_cast<size_t>(n * f.dim));
  for (int c = 0; c < f.dim; ++c) {
    const int64_t at = int64_t{head} * f.dim + c;
    const int count = 1 << target.levels.bits[at];
    float words[kPlaneLevels];
    for (int i = 0; i < count; ++i) {
      words[i] = (static_cast<float>(i) - static_cast<float>(count - 1) / 2) * target.levels.steps[at];
    }
    nearest_codeword(x.data() + c, f.dim, n, 1, words, count, index.data(), 1, nullptr);
    for (int64_t r = 0; r < n; ++r) codes[r * f.dim + c] = static_cast<uint8_t>(index[r]);
  }
  for (int64_t r = 0; r < n; ++r) {
    pack_planes(target.keys, side, f.dim, codes.data() + r * f.dim, side.norm ? &norms[r] : nullptr,
                static_cast<int>(slots[r] % int2::kPageTokens), 1, native_block(f, target, slots[r], head));
  }
}

}  // namespace

Status check_write(const CacheFormat& f, const WriteRule& rule, const WriteRows& in,
                   const WriteTarget& target) {
  if (Status s = check_format(f); !s.ok()) return s;
  const SideFormat& side = target.keys ? f.k : f.v;
  if (in.tokens < 0 || in.tokens > (int64_t{1} << 31) / f.kv_heads)
    return {"write: a call takes fewer than 2^31 rows"};
  if (in.tokens > 0 && (!in.rows || !in.slots)) return {"write: rows and slots must be given"};
  if (in.type == FloatType::f16) return {"write: rows are bf16 or f32"};
  if (in.rotation && in.type != FloatType::bf16) return {"write: a rotation takes bf16 rows"};
  if (f.layout == CacheLayout::native ? !target.pages : !target.codes || !target.scale_zero) {
    return {"write: the pages, or the codes and scales, to fill must be given"};
  }
  if (side.kind != CodeKind::int2) {
    if (side.kind == CodeKind::planes ? !target.levels.steps || !target.levels.bits
                                      : !target.book.words || !target.book.scales) {
      return {"write: vector codes need their codebook, bit planes their steps and bits"};
    }
    if (rule.clip > 0 || rule.step > 0) return {"write: clipping and Lloyd-Max are rules of int2"};
  } else if (rule.step > 0 && side.groups != 1) {
    return {"write: Lloyd-Max has one group"};
  }
  return {};
}

Status write(const CacheFormat& f, const WriteRule& rule, const WriteRows& in, const WriteTarget& target) {
  if (Status s = check_write(f, rule, in, target); !s.ok()) return s;
  const SideFormat& side = target.keys ? f.k : f.v;
  const bool together = side.kind != CodeKind::int2;  // tables are made once for all rows of a head
  if (side.kind == CodeKind::planes) {
    if (Status s = check_levels(f, side, target.levels); !s.ok()) return s;
  }
#pragma omp parallel for schedule(static)
  for (int head = 0; head < f.kv_heads; ++head) {
    std::vector<float> x(static_cast<size_t>(f.dim)), rows;
    std::vector<int64_t> slots;
    for (int64_t token = 0; token < in.tokens; ++token) {
      if (in.slots[token] < 0) continue;
      load_row(f, rule, in, token, head, x.data());
      if (!together) {
        write_int2(f, rule, target, in.slots[token], head, x.data());
      } else {
        rows.insert(rows.end(), x.begin(), x.end());
        slots.push_back(in.slots[token]);
      }
    }
    if (together) {
      (side.kind == CodeKind::planes ? write_planes : write_vectors)(f, target, rows, head, slots);
    }
  }
  return {};
}

}  // namespace oscar
