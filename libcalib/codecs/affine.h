// What the affine codecs with fp16 metadata share.
#pragma once
#include <algorithm>
#include <string_view>

#include "formats/dtype.h"
#include "formats/error.h"
#include "libcalib/codecs/codec.h"

namespace oscar {

// The nearest fp16, and the largest finite one instead of an infinity.
inline uint16_t finite_f16(double x) {
  return float_to_f16(static_cast<float>(std::clamp(x, -65504.0, 65504.0)));
}

inline void check_own_groups(std::string_view codec, int64_t n, int dim, const CodecOptions& options) {
  if (n < 0 || dim < 1) throw invalid("codec {}: {} rows of {} elements", codec, n, dim);
  if (options.groups != 1) {
    throw invalid("codec {}: its groups are those of the method, expected --groups 1, found {}", codec,
                  options.groups);
  }
}

}  // namespace oscar
