#include "libcalib/codecs/int2_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "formats/dtype.h"
#include "formats/error.h"
#include "kernels/int2.h"

namespace oscar {

Int2Rows::Int2Rows(int64_t n, int dim, int groups)
    : dim_(dim),
      groups_(groups),
      codes_(static_cast<size_t>(n * dim / 4)),
      scale_zero_(static_cast<size_t>(n * 2 * groups)) {}

void Int2Rows::decode(int64_t first, int64_t count, float* rows) const {
  int2::decode(dim_, groups_, codes_.data() + first * dim_ / 4, scale_zero_.data() + first * 2 * groups_,
               count, rows);
}

Int2Bf16Rows::Int2Bf16Rows(Int2Rows&& rows, int64_t n, int dim, int groups)
    : dim_(dim), groups_(groups), codes_(rows.codes(0), rows.codes(n)) {
  std::transform(rows.scale_zero(0), rows.scale_zero(n), std::back_inserter(scale_zero_), float_to_bf16);
}

void Int2Bf16Rows::decode(int64_t first, int64_t count, float* rows) const {
  const auto begin = scale_zero_.begin() + first * 2 * groups_;
  std::vector<float> scale_zero(static_cast<size_t>(count * 2 * groups_));
  std::transform(begin, begin + count * 2 * groups_, scale_zero.begin(), bf16_to_float);
  int2::decode(dim_, groups_, codes_.data() + first * dim_ / 4, scale_zero.data(), count, rows);
}

void check_row_count(std::string_view codec, int64_t n) {
  if (n < 0) throw invalid("codec {}: {} rows", codec, n);
}

void check_one_group(std::string_view codec, const CodecOptions& options) {
  if (options.groups != 1) {
    throw invalid("codec {}: a row is one group, expected --groups 1, found {}", codec, options.groups);
  }
}

void check_clip_ratio(std::string_view codec, const CodecOptions& options) {
  if (!std::isfinite(options.clip) || options.clip > 1) {
    throw invalid("codec {}: clip ratio {}: expected 0 (off) to 1", codec, options.clip);
  }
}

void check_engine_rows(std::string_view codec, int64_t n, int dim, const CodecOptions& options) {
  check_row_count(codec, n);
  if (dim < 4 || !std::has_single_bit(static_cast<unsigned>(dim))) {
    throw invalid(
        "codec {}: head dim {}: the engine packs powers of two only (64, 128, 256, ...); "
        "--codec none or bf16 take any",
        codec, dim);
  }
  if (options.groups < 1 || dim % options.groups != 0) {
    throw invalid("codec {}: {} groups do not divide the head dim {}: use a power of two up to {}", codec,
                  options.groups, dim, dim);
  }
  check_clip_ratio(codec, options);
}

template <typename Bits, typename Float>
static Float nth(const Float* row, int dim, int index) {
  // Magnitudes in the order of their bit patterns, which is that of floats and total.
  std::vector<Bits> bits(static_cast<size_t>(dim));
  std::transform(row, row + dim, bits.begin(), [](Float x) { return std::bit_cast<Bits>(std::abs(x)); });
  std::nth_element(bits.begin(), bits.begin() + index, bits.end());
  return std::bit_cast<Float>(bits[static_cast<size_t>(index)]);
}

float nth_magnitude(const float* row, int dim, int index) {
  return nth<uint32_t>(row, dim, index);
}

double nth_magnitude(const double* row, int dim, int index) {
  return nth<uint64_t>(row, dim, index);
}

float round_bf16(float x) {
  return bf16_to_float(float_to_bf16(x));
}

}  // namespace oscar
