// The serving engine's packed INT2 as its unfused prefill path writes it: kernels/int2.h holds the layout and
// the rule.
//
//   sglang-prefill        scale and zero in float32, as the engine keeps them unless told otherwise
//   sglang-prefill-bf16   in bfloat16, half the metadata; codes are chosen before scale and zero are rounded
#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/int2.h"
#include "libcalib/codecs/int2_rows.h"

namespace oscar {
namespace {

void check_options(std::string_view codec, int64_t n, int dim, const CodecOptions& options) {
  check_engine_rows(codec, n, dim, options);
  if (options.clip <= 0 && options.groups != 1 && options.groups % 4 != 0) {
    throw invalid(
        "codec {}: {} groups without clipping: that kernel of the engine takes 1 group or a "
        "multiple of 4; a ratio of 1 clips nothing and takes the kernel that can",
        codec, options.groups);
  }
}

std::unique_ptr<Int2Rows> encode_rows(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  auto out = std::make_unique<Int2Rows>(n, dim, options.groups);
  int2::encode({.dim = dim, .groups = options.groups, .clip = options.clip}, rows, n, out->codes(0),
               out->scale_zero(0));
  return out;
}

void decode_reference(const double* rows, int64_t n, int dim, const CodecOptions& options, bool bf16,
                      double* decoded) {
  const auto kept = [bf16](double value) {
    return bf16 ? double{round_bf16(static_cast<float>(value))} : value;
  };
  std::vector<double> x(static_cast<size_t>(dim)), magnitude(x.size());
  for (int64_t r = 0; r < n; ++r) {
    std::transform(rows + r * dim, rows + (r + 1) * dim, x.begin(),
                   [](double value) { return round_bf16(static_cast<float>(value)); });
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
        decoded[r * dim + i] = (code - kept(zero)) * kept(scale);
      }
    }
  }
}

}  // namespace

namespace sglang_prefill {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options("sglang-prefill", n, dim, options);
  return encode_rows(rows, n, dim, options);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options("sglang-prefill", n, dim, options);
  decode_reference(rows, n, dim, options, false, decoded);
}
}  // namespace sglang_prefill

namespace sglang_prefill_bf16 {
std::unique_ptr<EncodedRows> encode(const float* rows, int64_t n, int dim, const CodecOptions& options) {
  check_options("sglang-prefill-bf16", n, dim, options);
  return std::make_unique<Int2Bf16Rows>(std::move(*encode_rows(rows, n, dim, options)), n, dim,
                                        options.groups);
}
void reference(const double* rows, int64_t n, int dim, const CodecOptions& options, double* decoded) {
  check_options("sglang-prefill-bf16", n, dim, options);
  decode_reference(rows, n, dim, options, true, decoded);
}
}  // namespace sglang_prefill_bf16

}  // namespace oscar
