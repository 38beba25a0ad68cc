// KIVI (arXiv 2402.02750) and Kitty (arXiv 2511.18643): affine codes whose keys have their ranges per
// channel.
//
//   kivi-k    pages of 32 tokens, counted from the first row; a channel of a page is a group of 2 bits
//   kivi-v    groups of 32 channels of a token, 2 bits
//   kitty-k   pages of 128 tokens; the quarter of a page's channels with the largest mean |x| has 4 bits, the
//             others 2
//
// Rows are rounded to fp16 first, which is what these caches hold; low = min and scale = (max - min) /
// (levels - 1) are kept as fp16, and a code reads as low + code scale. It is
//
//   KIVI      (x - low) / scale with the fp16 scale, to nearest, ties to even; 0 where scale is 0
//   Kitty     trunc((x - low) / scale + 0.5) with scale = max(scale, 1e-6) before it is rounded to fp16. This
//             is its kernel; its Python simulation sends ties to even and keeps the range above 1e-4.
//
// Kitty's own: the page, the choice by mean magnitude for each page afresh, 4 bits, a quarter of the channels
// ("Kitty-Pro"; "Kitty" boosts an eighth), the two planes of 2 bits. Ours: a bit mask says which channels are
// boosted, where the release keeps a byte a channel; equal channels are taken from the first; a last page of
// fewer tokens is quantised as it is, where both releases keep it exact until it is full.
//
//   low bits    (ceil(tokens / 4), D) uint8 a page: tokens 4i to 4i + 3 of a channel, bits 0-1 first
//   high bits   (ceil(tokens / 4), D / 4) uint8 a page: the same of the boosted channels, in order
//   range       (D) fp16 low and (D) fp16 scale a page
//   mask        (D / 8) uint8 a page: bit i of byte b is channel 8b + i
#include <cmath>
#include <numeric>

#include "libcalib/codecs/affine.h"
#include "libcalib/codecs/codec.h"

namespace oscar {
namespace {

struct Rule {
  std::string_view codec;
  int tokens;  // of a page, or channels of a group
  bool boost;
  bool kitty;  // rounding
  int boosted(int dim) const { return boost ? dim / 4 : 0; }
};
constexpr Rule kKiviK{"kivi-k", 32, false, false}, kKiviV{"kivi-v", 32, false, false};
constexpr Rule kKittyK{"kitty-k", 128, true, true};

struct Group {
  float low, scale;  // that fp16 holds
  float divisor;
  int levels;

  // `count` values, `stride` apart
  Group(const Rule& rule, const float* x, int64_t count, int64_t stride, int bits)
      : low(x[0]), levels(1 << bits) {
    float high = low;
    for (int64_t i = 1; i < count; ++i) {
      low = std::min(low, x[i * stride]);
      high = std::max(high, x[i * stride]);
    }
    const float exact = (high - low) / static_cast<float>(levels - 1);
    divisor = rule.kitty ? std::max(exact, 1e-6f) : exact;
    scale = f16_to_float(finite_f16(divisor));
    if (!rule.kitty) divisor = scale;
  }
  int code(const Rule& rule, float x) const {
    if (!(divisor > 0)) return 0;
    const float level = (x - low) / divisor;
    const float whole = rule.kitty ? std::floor(level + 0.5f) : std::nearbyint(level);
    return static_cast<int>(std::clamp(whole, 0.0f, static_cast<float>(levels - 1)));
  }
};

template <typename Float>
Float round_f16(Float x) {
  return f16_to_float(finite_f16(x));
}

// The boosted channels of a page of rows, ascending.
std::vector<int> boosted_channels(const Rule& rule, const float* rows, int64_t tokens, int dim) {
  std::vector<double> magnitude(static_cast<size_t>(dim));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int c = 0; c < dim; ++c) magnitude[static_cast<size_t>(c)] += std::abs(rows[t * dim + c]);
  }
  std::vector<int> order(static_cast<size_t>(dim));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](int c) { return magnitude[static_cast<size_t>(c)]; });
  order.resize(static_cast<size_t>(rule.boosted(dim)));
  std::ranges::sort(order);
  return order;
}

class ChannelPages : public EncodedRows {
 public:
  ChannelPages(const Rule& rule, const float* rows, int64_t n, int dim)
      : rule_(rule), dim_(dim), boosted_(rule.boosted(dim)), mask_bytes_(rule.boost ? (dim + 7) / 8 : 0) {
    const int64_t pages = (n + rule.tokens - 1) / rule.tokens;
    const int64_t quads = n / rule.tokens * (rule.tokens / 4) + (n % rule.tokens + 3) / 4;
    codes_.resize(static_cast<size_t>(quads * dim));
    high_.resize(static_cast<size_t>(quads * boosted_));
    range_.resize(static_cast<size_t>(pages * 2 * dim));
    mask_.resize(static_cast<size_t>(pages * mask_bytes_));
    std::vector<float> x;
    for (int64_t page = 0; page < pages; ++page) {
      const int64_t first = page * rule.tokens, tokens = std::min<int64_t>(rule.tokens, n - first);
      x.assign(rows + first * dim, rows + (first + tokens) * dim);
      std::ranges::transform(x, x.begin(), round_f16<float>);
      encode_page(page, x.data(), tokens);
    }
  }

  void decode(int64_t first, int64_t count, float* rows) const override {
    std::vector<float> range(static_cast<size_t>(2 * dim_));
    for (int64_t r = first; r < first + count;) {
      const int64_t page = r / rule_.tokens, last = std::min(first + count, (page + 1) * rule_.tokens);
      std::transform(range_.begin() + page * 2 * dim_, range_.begin() + (page + 1) * 2 * dim_, range.begin(),
                     f16_to_float);
      const float *low = range.data(), *scale = low + dim_;
      const std::vector<int> boosted = masked_channels(page);
      for (; r < last; ++r, rows += dim_) {
        const int shift = static_cast<int>(2 * (r % 4));
        const uint8_t* codes = codes_.data() + r / 4 * dim_;
        for (int c = 0; c < dim_; ++c)
          rows[c] = low[c] + static_cast<float>(codes[c] >> shift & 3) * scale[c];
        const uint8_t* high = high_.data() + r / 4 * boosted_;
        for (const int c : boosted) {
          const int code = (codes[c] >> shift & 3) | (*high++ >> shift & 3) << 2;
          rows[c] = low[c] + static_cast<float>(code) * scale[c];
        }
      }
    }
  }
  size_t bytes() const override {
    return codes_.size() + high_.size() + range_.size() * sizeof(uint16_t) + mask_.size();
  }

 private:
  void encode_page(int64_t page, const float* x, int64_t tokens) {
    const std::vector<int> boosted = boosted_channels(rule_, x, tokens, dim_);
    uint16_t* range = range_.data() + page * 2 * dim_;
    const int64_t quad = page * rule_.tokens / 4;
    for (int c = 0, next = 0; c < dim_; ++c) {
      const bool boost = next < boosted_ && boosted[static_cast<size_t>(next)] == c;
      const Group group(rule_, x + c, tokens, dim_, boost ? 4 : 2);
      range[c] = finite_f16(group.low);
      range[dim_ + c] = finite_f16(group.scale);
      for (int64_t t = 0; t < tokens; ++t) {
        const int code = group.code(rule_, x[t * dim_ + c]), shift = static_cast<int>(2 * (t % 4));
        codes_[static_cast<size_t>((quad + t / 4) * dim_ + c)] |= static_cast<uint8_t>((code & 3) << shift);
        if (!boost) continue;
        high_[static_cast<size_t>((quad + t / 4) * boosted_ + next)] |=
            static_cast<uint8_t>(code >> 2 << shift);
      }
      if (!boost) continue;
      mask_[static_cast<size_t>(page * mask_bytes_ + c / 8)] |= static_cast<uint8_t>(1 << c % 8);
      ++next;
    }
  }
  std::vector<int> masked_channels(int64_t page) const {
    std::vector<int> channels;
    for (int c = 0; c < dim_ && rule_.boost; ++c) {
      if (mask_[static_cast<size_t>(page * mask_bytes_ + c / 8)] >> c % 8 & 1) channels.push_back(c);
    }
    return channels;
  }

  Rule rule_;
  int dim_, boosted_, mask_bytes_;
  std::vector<uint8_t> codes_, high_;
  std::vector<uint16_t> range_;
  std::vector<uint8_t> mask_;
};

// The rule in double: `count` values that are `stride` apart become what they read as.
void reference_group(bool kitty, double* x, int64_t count, int64_t stride, int bits) {
  double low = *x, high = *x;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, x[i * stride]);
    high = std::max(high, x[i * stride]);
  }
  const double last = (1 << bits) - 1, exact = (high - low) / last;
  const double kept = round_f16(kitty ? std::max(exact, 1e-6) : exact);
  for (int64_t i = 0; i < count; ++i) {
    const double above = x[i * stride] - low;
    const double code = kitty      ? std::trunc(above / std::max(exact, 1e-6) + 0.5)
                        : kept > 0 ? std::nearbyint(above / kept)
                                   : 0;
    x[i * stride] = low + std::min(code, last) * kept;
  }
}

void reference_pages(const Rule& rule, const double* rows, int64_t n, int dim, double* decoded) {
  std::transform(rows, rows + n * dim, decoded, round_f16<double>);
  for (int64_t first = 0; first < n; first += rule.tokens) {
    const int64_t tokens = std::min<int64_t>(rule.tokens, n - first);
    double* page = decoded + first * dim;
    std::vector<std::pair<double, int>> loudest;  // -mean |x| and channel
    for (int c = 0; c < dim; ++c) {
      double sum = 0;
      for (int64_t t = 0; t < tokens; ++t) sum += std::abs(page[t * dim + c]);
      loudest.emplace_back(-sum / static_cast<double>(tokens), c);
    }
    std::ranges::sort(loudest);
    for (int rank = 0; rank < dim; ++rank) {
      const int bits = rule.boost && rank < dim / 4 ? 4 : 2;
      reference_group(rule.kitty, page + loudest[static_cast<size_t>(rank)].second, tokens, dim, bits);
    }
  }
}

class TokenGroups : public EncodedRows {
 public:
  TokenGroups(const Rule& rule, const float* rows, int64_t n, int dim)
      : size_(rule.tokens), dim_(dim), codes_(static_cast<size_t>(n * dim / 4)) {
    ranges_.reserve(static_cast<size_t>(n * dim / size_));
    std::vector<float> x(rows, rows + n * dim);
    std::ranges::transform(x, x.begin(), round_f16<float>);
    for (int64_t i = 0; i < n * dim; i += size_) {
      const Group group(rule, x.data() + i, size_, 1, 2);
      ranges_.push_back({finite_f16(group.low), finite_f16(group.scale)});
      for (int64_t j = i; j < i + size_; ++j) {
        const int code = group.code(rule, x[static_cast<size_t>(j)]);
        codes_[static_cast<size_t>(j / 4)] |= static_cast<uint8_t>(code << 2 * (j % 4));
      }
    }
  }
  void decode(int64_t first, int64_t count, float* rows) const override {
    const int64_t begin = first * dim_;
    for (int64_t i = begin; i < (first + count) * dim_; i += size_) {
      const Range& kept = ranges_[static_cast<size_t>(i / size_)];
      const float low = f16_to_float(kept.low), scale = f16_to_float(kept.scale);
      const uint8_t* codes = codes_.data() + i / 4;
      for (int j = 0; j < size_; ++j) {
        rows[i - begin + j] = low + static_cast<float>(codes[j / 4] >> 2 * (j % 4) & 3) * scale;
      }
    }
  }
  size_t bytes() const override { return codes_.size() + ranges_.size() * sizeof(Range); }

 private:
  struct Range {
    uint16_t low, scale;  // fp16
  };
  int size_, dim_;
  std::vector<uint8_t> codes_;  // (n, D/4), four neighbours a byte
  std::vector<Range> ranges_;   // (n, D/32)
};

void check_token_groups(int64_t n, int dim, const CodecOptions& options) {
  check_own_groups("kivi-v", n, dim, options);
  if (dim % kKiviV.tokens != 0) {
    throw invalid("codec kivi-v: head dim {}: its groups are {} channels, which must divide it", dim,
                  kKiviV.tokens);
  }
}

}  // namespace

namespace kivi_k {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_own_groups("kivi-k", n, dim, options);
  return std::make_unique<ChannelPages>(kKiviK, rows, n, dim);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_own_groups("kivi-k", n, dim, options);
  reference_pages(kKiviK, rows, n, dim, decoded);
}
}  // namespace kivi_k

namespace kivi_v {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_token_groups(n, dim, options);
  return std::make_unique<TokenGroups>(kKiviV, rows, n, dim);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_token_groups(n, dim, options);
  std::transform(rows, rows + n * dim, decoded, round_f16<double>);
  for (double* x = decoded; x < decoded + n * dim; x += kKiviV.tokens) {
    reference_group(false, x, kKiviV.tokens, 1, 2);
  }
}
}  // namespace kivi_v

namespace kitty_k {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_own_groups("kitty-k", n, dim, options);
  return std::make_unique<ChannelPages>(kKittyK, rows, n, dim);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_own_groups("kitty-k", n, dim, options);
  reference_pages(kKittyK, rows, n, dim, decoded);
}
}  // namespace kitty_k

}  // namespace oscar
