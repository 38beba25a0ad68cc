// 4-bit affine codes per token: SAW-INT4 (arXiv 2604.19157), whose transform is a block-diagonal Hadamard.
//
//   1. the row is rounded to bfloat16
//   2. a group of D / G channels: low = min, scale = (max - min) / 15, each kept as fp16
//   3. code = trunc((x - low) / scale + 0.5), within 0..15, of the fp16 values; 0 where scale is 0
//   4. read back: low + code scale
//
//   codes   (D/2) uint8   byte i holds elements i and i + D/2 in its low and high nibble
//   range   (2G) fp16     low_0, scale_0, low_1, …
//
// Rule and bytes of the codes are the released kernel's; it has one group, and keeps (scale, zero point).
#include <cmath>

#include "libcalib/codecs/affine.h"
#include "libcalib/codecs/int2_rows.h"

namespace oscar::int4 {
namespace {

void check_options(int64_t n, int dim, const CodecOptions& options) {
  check_row_count("int4", n);
  if (dim < 2 || dim % 2 != 0) {
    throw invalid("codec int4: head dim {}: two codes share a byte, expected an even one", dim);
  }
  if (options.groups < 1 || dim % options.groups != 0) {
    throw invalid("codec int4: {} groups do not divide the head dim {}", options.groups, dim);
  }
}

struct Range {
  uint16_t low, scale;  // fp16
};
template <typename Float>
Range range(const Float* x, int size) {
  const auto [low, high] = std::minmax_element(x, x + size);
  return {finite_f16(*low), finite_f16((double(*high) - double(*low)) / 15)};
}

class Int4Rows : public EncodedRows {
 public:
  Int4Rows(const float* rows, int64_t n, int dim, int groups)
      : dim_(dim),
        groups_(groups),
        codes_(static_cast<size_t>(n * dim / 2)),
        ranges_(static_cast<size_t>(n * groups)) {
    const int size = dim / groups, half = dim / 2;
    std::vector<float> x(static_cast<size_t>(dim));
    for (int64_t r = 0; r < n; ++r) {
      std::transform(rows + r * dim, rows + (r + 1) * dim, x.begin(), round_bf16);
      uint8_t* codes = codes_.data() + r * half;
      for (int g = 0; g < groups; ++g) {
        const Range kept = ranges_[static_cast<size_t>(r * groups + g)] = range(x.data() + g * size, size);
        const float low = f16_to_float(kept.low), scale = f16_to_float(kept.scale);
        for (int i = g * size; i < (g + 1) * size && scale > 0; ++i) {
          const float level = std::clamp((x[static_cast<size_t>(i)] - low) / scale + 0.5f, 0.0f, 15.0f);
          codes[i % half] |= static_cast<uint8_t>(static_cast<int>(level) << (i < half ? 0 : 4));
        }
      }
    }
  }
  void decode(int64_t first, int64_t count, float* rows) const override {
    const int size = dim_ / groups_, half = dim_ / 2;
    for (int64_t r = first; r < first + count; ++r, rows += dim_) {
      const uint8_t* codes = codes_.data() + r * half;
      for (int i = 0; i < half; ++i) {
        rows[i] = static_cast<float>(codes[i] & 15);
        rows[i + half] = static_cast<float>(codes[i] >> 4);
      }
      for (int g = 0; g < groups_; ++g) {
        const Range& kept = ranges_[static_cast<size_t>(r * groups_ + g)];
        const float low = f16_to_float(kept.low), scale = f16_to_float(kept.scale);
        for (int i = g * size; i < (g + 1) * size; ++i) rows[i] = low + rows[i] * scale;
      }
    }
  }
  size_t bytes() const override { return codes_.size() + ranges_.size() * sizeof(Range); }

 private:
  int dim_, groups_;
  std::vector<uint8_t> codes_;  // (n, D/2)
  std::vector<Range> ranges_;   // (n, G)
};

}  // namespace

std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options(n, dim, options);
  return std::make_unique<Int4Rows>(rows, n, dim, options.groups);
}

void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options(n, dim, options);
  std::transform(rows, rows + n * dim, decoded,
                 [](double value) { return round_bf16(static_cast<float>(value)); });
  const int size = dim / options.groups;
  for (double* group = decoded; group < decoded + n * dim; group += size) {
    const Range kept = range(group, size);
    const double low = f16_to_float(kept.low), scale = f16_to_float(kept.scale);
    for (int i = 0; i < size; ++i) {
      const double code = scale > 0 ? std::clamp(std::floor((group[i] - low) / scale + 0.5), 0.0, 15.0) : 0;
      group[i] = low + code * scale;
    }
  }
}

}  // namespace oscar::int4
