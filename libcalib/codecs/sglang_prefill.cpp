// The serving engine's packed INT2 as its unfused prefill path writes it: kernels/int2.h holds the layout and
// the rule.
#include <algorithm>
#include <bit>
#include <cmath>

#include "formats/dtype.h"
#include "formats/error.h"
#include "kernels/int2.h"
#include "libcalib/codecs/codec.h"

namespace oscar::sglang_prefill {
namespace {

// What the engine's launchers demand of a row; anything else would be refused there, or worse, run.
void check_options(int64_t n, int dim, const CodecOptions& options) {
  const int groups = options.groups;
  const double clip = options.clip;
  if (n < 0) throw invalid("codec sglang-prefill: {} rows", n);
  if (dim < 4 || !std::has_single_bit(static_cast<unsigned>(dim))) {
    throw invalid(
        "codec sglang-prefill: head dim {}: the engine packs powers of two only (64, 128, 256, ...); "
        "--codec none or bf16 take any",
        dim);
  }
  if (groups < 1 || dim % groups != 0) {
    throw invalid(
        "codec sglang-prefill: {} groups do not divide the head dim {}: use a power of two up to {}", groups,
        dim, dim);
  }
  if (!std::isfinite(clip) || clip > 1) {
    throw invalid("codec sglang-prefill: clip ratio {}: expected 0 (off) to 1", clip);
  }
  if (clip <= 0 && groups != 1 && groups % 4 != 0) {
    throw invalid(
        "codec sglang-prefill: {} groups without clipping: that kernel of the engine takes 1 group or a "
        "multiple of 4; a ratio of 1 clips nothing and takes the kernel that can",
        groups);
  }
}

class PackedRows : public EncodedRows {
 public:
  PackedRows(const float* rows, int64_t n, int dim, const CodecOptions& options)
      : dim_(dim),
        groups_(options.groups),
        codes_(static_cast<size_t>(n * dim / 4)),
        scale_zero_(static_cast<size_t>(n * 2 * options.groups)) {
    int2::encode({.dim = dim, .groups = groups_, .clip = options.clip}, rows, n, codes_.data(),
                 scale_zero_.data());
  }
  void decode(int64_t first, int64_t count, float* rows) const override {
    int2::decode(dim_, groups_, codes_.data() + first * dim_ / 4, scale_zero_.data() + first * 2 * groups_,
                 count, rows);
  }
  size_t bytes() const override { return codes_.size() + scale_zero_.size() * sizeof(float); }

 private:
  int dim_, groups_;
  std::vector<uint8_t> codes_;     // (n, D/4)
  std::vector<float> scale_zero_;  // (n, 2G)
};

// A row reaches the cache as float32 and is staged in bfloat16.
double round_bf16(double x) {
  return bf16_to_float(float_to_bf16(static_cast<float>(x)));
}

}  // namespace

std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options(n, dim, options);
  return std::make_unique<PackedRows>(rows, n, dim, options);
}

void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options(n, dim, options);
  std::vector<double> x(static_cast<size_t>(dim)), magnitude(x.size());
  for (int64_t r = 0; r < n; ++r) {
    std::transform(rows + r * dim, rows + (r + 1) * dim, x.begin(), round_bf16);
    if (options.clip > 0) {
      std::transform(x.begin(), x.end(), magnitude.begin(), [](double value) { return std::abs(value); });
      std::sort(magnitude.begin(), magnitude.end());
      const double tau =
          magnitude[static_cast<size_t>(std::min(static_cast<int>(options.clip * dim), dim - 1))];
      for (auto& value : x) value = std::clamp(value, -tau, tau);
    }
    const int size = dim / options.groups;
    for (int first = 0; first < dim; first += size) {
      const auto [low, high] = std::minmax_element(x.begin() + first, x.begin() + first + size);
      const double scale = std::max(*high - *low, 1e-8) / 3, zero = -*low / scale;
      for (int i = first; i < first + size; ++i) {
        const double code = std::clamp(std::trunc(x[static_cast<size_t>(i)] / scale + zero + 0.5), 0.0, 3.0);
        decoded[r * dim + i] = (code - zero) * scale;
      }
    }
  }
}

}  // namespace oscar::sglang_prefill
