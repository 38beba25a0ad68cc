// INT2 by the mean and the standard deviation of a row instead of its range, in the layout of kernels/int2.h.
//
//   1. the row is rounded to bfloat16, then clipped as kernels/int2.h says
//   2. sigma = sqrt(population variance + 1e-8), z = (x - mean) / sigma, code = how many of -threshold, 0 and
//      threshold are at most z
//   3. scale = step sigma, zero = 1.5 - mean / scale; read back as (code - zero) scale, so the levels are
//      mean -+ step sigma / 2 and -+ 3 step sigma / 2
//
// The levels of the 4-level Lloyd-Max quantiser of a normal variable are not evenly spaced, those of an
// affine code are: which step and which thresholds to have instead is what the rules below differ in.
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/int2.h"
#include "libcalib/codecs/int2_rows.h"

namespace oscar {
namespace {

struct Rule {
  std::string_view codec;
  double threshold, step;  // in sigma
  bool engine;             // the engine's kernel: its head dims only
};

constexpr double kThreshold = 0.9810652732849121, kOuterLevel = 1.5095585584640503;

// The engine's prefill path: levels as wide as Lloyd-Max's outer ones, times 1.16 "to match the range of
// clipping at .96". It costs a quarter more error than the best step, and is what the engine writes.
constexpr Rule kSglang{"sglang-lloyd-max", kThreshold, 2 * kOuterLevel / 3 * 1.16, true};
// The uniform quantiser of least error, which goes to the nearest level: thresholds are one step.
constexpr Rule kOptimal{"lloyd-max", 0.9957, 0.9957, false};
// The engine's levels with the nearest of them chosen. No engine does this: the published figures of "the
// engine's Lloyd-Max" were measured so (docs/quality.md).
constexpr Rule kWide{"lloyd-max-wide", 2 * kOuterLevel / 3 * 1.16, 2 * kOuterLevel / 3 * 1.16, false};
// NOVA-KV's scalar codes: the best step for Lloyd-Max's thresholds.
constexpr Rule kNova{"nova-scalar-int2", kThreshold, 0.98774, false};

void check_options(const Rule& rule, int64_t n, int dim, const CodecOptions& options) {
  if (rule.engine) {
    check_engine_rows(rule.codec, n, dim, options);
    check_one_group(rule.codec, options);
    return;
  }
  check_row_count(rule.codec, n);
  if (dim < 4 || dim % 4 != 0) {
    throw invalid("codec {}: head dim {}: four codes share a byte, expected a multiple of 4", rule.codec,
                  dim);
  }
  check_one_group(rule.codec, options);
  check_clip_ratio(rule.codec, options);
}

template <typename Float>
struct Spread {
  Float mean, sigma;
};

// Sums in double: in what order the engine adds is not fixed.
template <typename Float>
Spread<Float> spread(const std::vector<Float>& x) {
  const auto count = static_cast<double>(x.size());
  double sum = 0, squares = 0;
  for (const Float value : x) sum += value;
  const auto mean = static_cast<Float>(sum / count);
  for (const Float value : x) squares += double(value - mean) * (value - mean);
  return {mean, std::sqrt(static_cast<Float>(squares / count) + Float(1e-8))};
}

template <typename Float>
void clip(std::vector<Float>& x, double ratio) {
  const int dim = static_cast<int>(x.size()), index = int2::clip_index(ratio, dim);
  if (index < 0) return;
  const Float tau = nth_magnitude(x.data(), dim, index);
  for (Float& value : x) value = value < -tau ? -tau : value > tau ? tau : value;
}

std::unique_ptr<EncodedRows> encode(const Rule& rule, const float* rows, int64_t n, int dim,
                                    const CodecOptions& options) {
  check_options(rule, n, dim, options);
  auto out = std::make_unique<Int2Rows>(n, dim, 1);
  const auto threshold = static_cast<float>(rule.threshold), step = static_cast<float>(rule.step);
  const int quarter = dim / 4;
  std::vector<float> x(static_cast<size_t>(dim));
  for (int64_t r = 0; r < n; ++r) {
    std::transform(rows + r * dim, rows + (r + 1) * dim, x.begin(), round_bf16);
    clip(x, options.clip);
    const auto [mean, sigma] = spread(x);
    const float scale = step * sigma;
    out->scale_zero(r)[0] = scale;
    out->scale_zero(r)[1] = 1.5f - mean / scale;
    uint8_t* codes = out->codes(r);
    for (int i = 0; i < dim; ++i) {
      const float z = (x[static_cast<size_t>(i)] - mean) / sigma;
      const int code = (z >= -threshold) + (z >= 0) + (z >= threshold);
      codes[i % quarter] |= static_cast<uint8_t>(code << (2 * (i / quarter)));
    }
  }
  return out;
}

void reference(const Rule& rule, const double* rows, int64_t n, int dim, const CodecOptions& options,
               double* decoded) {
  check_options(rule, n, dim, options);
  std::vector<double> x(static_cast<size_t>(dim));
  for (int64_t r = 0; r < n; ++r) {
    std::transform(rows + r * dim, rows + (r + 1) * dim, x.begin(),
                   [](double value) { return round_bf16(static_cast<float>(value)); });
    clip(x, options.clip);
    const auto [mean, sigma] = spread(x);
    for (int i = 0; i < dim; ++i) {
      const double z = (x[static_cast<size_t>(i)] - mean) / sigma;
      const double level = z < -rule.threshold ? -1.5 : z < 0 ? -0.5 : z < rule.threshold ? 0.5 : 1.5;
      decoded[r * dim + i] = mean + level * rule.step * sigma;
    }
  }
}

}  // namespace

namespace sglang_lloyd_max {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  return oscar::encode(kSglang, rows, n, dim, options);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  oscar::reference(kSglang, rows, n, dim, options, decoded);
}
}  // namespace sglang_lloyd_max

namespace lloyd_max {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  return oscar::encode(kOptimal, rows, n, dim, options);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  oscar::reference(kOptimal, rows, n, dim, options, decoded);
}
}  // namespace lloyd_max

namespace lloyd_max_wide {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  return oscar::encode(kWide, rows, n, dim, options);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  oscar::reference(kWide, rows, n, dim, options, decoded);
}
}  // namespace lloyd_max_wide

namespace nova_scalar_int2 {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  return oscar::encode(kNova, rows, n, dim, options);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  oscar::reference(kNova, rows, n, dim, options, decoded);
}
}  // namespace nova_scalar_int2

}  // namespace oscar
