// The serving engine's packed INT2 as the decode step writes it. The rule is that of kernels/int2.h but for
// the clip threshold, which at head dims from 64 is found by bisection of [0, max |x|]: log2(D) halvings, of
// which the upper end is taken, looking for the least value that at most D - index magnitudes exceed. So it
// lies within max |x| / D above the (index - 1)-th smallest magnitude, 0-based; prefill takes the index-th.
//
//   sglang-flush   rows leave the recent window, so they are bfloat16; G groups
//   sglang-fused   keys that the kernel itself has rotated, so they are float32; one group. Its values come
//                  as bfloat16: they are those of sglang-flush.
#include <algorithm>
#include <bit>
#include <cmath>

#include "formats/error.h"
#include "kernels/int2.h"
#include "libcalib/codecs/int2_rows.h"

namespace oscar {
namespace {

constexpr int kBisectFrom = 64;  // smaller rows are sorted

template <typename Float>
Float threshold(const Float* x, int dim, int index) {
  if (dim < kBisectFrom) return nth_magnitude(x, dim, index);
  Float low = 0, high = 0;
  for (int i = 0; i < dim; ++i) high = std::max(high, std::abs(x[i]));
  for (int step = std::countr_zero(static_cast<unsigned>(dim)); step > 0; --step) {
    const Float middle = (low + high) * Float(0.5);
    const auto above = std::count_if(x, x + dim, [&](Float value) { return std::abs(value) > middle; });
    (above > dim - index ? low : high) = middle;
  }
  return high;
}

template <typename Float>
void clip(Float* x, int dim, double ratio) {
  const int index = int2::clip_index(ratio, dim);
  if (index < 0) return;
  const Float tau = threshold(x, dim, index);
  for (int i = 0; i < dim; ++i) x[i] = x[i] < -tau ? -tau : x[i] > tau ? tau : x[i];
}

std::unique_ptr<EncodedRows> encode_clipped(const float* rows, int64_t n, int dim,
                                            const CodecOptions& options, bool bf16) {
  std::vector<float> x(rows, rows + n * dim);
  if (bf16) std::ranges::transform(x, x.begin(), round_bf16);
  for (int64_t r = 0; r < n; ++r) clip(x.data() + r * dim, dim, options.clip);
  auto out = std::make_unique<Int2Rows>(n, dim, options.groups);
  int2::encode({.dim = dim, .groups = options.groups, .clip = 0, .round_bf16 = false}, x.data(), n,
               out->codes(0), out->scale_zero(0));
  return out;
}

void reference_clipped(const double* rows, int64_t n, int dim, const CodecOptions& options, bool bf16,
                       double* decoded) {
  const int size = dim / options.groups;
  for (int64_t r = 0; r < n; ++r) {
    double* x = decoded + r * dim;
    std::transform(rows + r * dim, rows + (r + 1) * dim, x,
                   [&](double value) { return bf16 ? round_bf16(static_cast<float>(value)) : value; });
    clip(x, dim, options.clip);
    for (double* group = x; group < x + dim; group += size) {
      const auto [low, high] = std::minmax_element(group, group + size);
      const double scale = std::max(*high - *low, 1e-8) / 3, zero = -*low / scale;
      std::transform(group, group + size, group, [&](double value) {
        return (std::clamp(std::trunc(value / scale + zero + 0.5), 0.0, 3.0) - zero) * scale;
      });
    }
  }
}

void check_fused(int64_t n, int dim, const CodecOptions& options) {
  check_engine_rows("sglang-fused", n, dim, options);
  check_one_group("sglang-fused", options);
}

}  // namespace

namespace sglang_flush {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_engine_rows("sglang-flush", n, dim, options);
  return encode_clipped(rows, n, dim, options, true);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_engine_rows("sglang-flush", n, dim, options);
  reference_clipped(rows, n, dim, options, true, decoded);
}
}  // namespace sglang_flush

namespace sglang_fused {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_fused(n, dim, options);
  return encode_clipped(rows, n, dim, options, false);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_fused(n, dim, options);
  reference_clipped(rows, n, dim, options, false, decoded);
}
}  // namespace sglang_fused

}  // namespace oscar
